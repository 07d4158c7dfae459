"""The GPU kernels of a decode step against the modules that they replace, one by one and together: run as a script.

    python gpu_cases.py blocks steps search graphs [--only NAME] [--rows 1,3]

On a machine with CUDA the kernels run in float32 and bfloat16; elsewhere Triton's interpreter runs them, if
TRITON_INTERPRET=1. It prints the largest error of each case, and exits with an error if one is too large.
"""

import argparse
import copy
import sys

import torch
import torch.nn.functional as F

import clearhead as ch
from clearhead.decode import Choice, Plan, search, stream
from clearhead.fast import cuda_graph, gpu_decode
from clearhead.fast.gpu_decode import KERNEL_ROWS, LANE_ROWS, GpuDecoder, ProductTile
from clearhead.layers import attend
from clearhead.layers.mlp import ACTIVATIONS

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
V, LIMIT = 29, 24
GPT2 = {"vocab": V, "width": 12, "depth": 1, "heads": 3, "context": 40}
LLAMA = {**GPT2, "positions": "rotary", "kv_heads": 1, "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False}
KINDS = {
    "gpt2": GPT2,
    "llama": {**LLAMA, "hidden": 22},
    "mistral": {**LLAMA, "window": 4, "head": 6, "heads": 6, "kv_heads": 2},
    "qwen2": {**LLAMA, "bias": "qkv", "mlp": "swiglu"},
    "odd heads": {**GPT2, "head": 5, "mlp": "relu"},
    "no norm, sinusoid": {**GPT2, "norm": "none", "positions": "sinusoid", "score": "dot", "mlp": "tanh"},
    "no positions": {**GPT2, "positions": "none", "mlp": "gelu", "bias": False},
}
REAL = {
    "llama, wide": {**LLAMA, "width": 2048, "heads": 32, "kv_heads": 4, "hidden": 5632, "vocab": 32000},
    "gpt2, wide": {**GPT2, "width": 768, "heads": 12, "vocab": 50257},
    "llama, between": {**LLAMA, "width": 576, "heads": 9, "kv_heads": 3, "hidden": 1536, "vocab": 4999},
}
PRODUCTS = ("qkv", "out", "up", "down", "logits")
# few programs: the interpreter takes long for each
COARSE = {name: ProductTile(outputs=16, columns=64) for name in PRODUCTS}
SAMPLED = Choice(sample=True, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01)
FINE = {name: ProductTile(outputs=8, columns=8) for name in PRODUCTS}  # each row of weights in several parts


def build(kind: str, depth: int = 1, dtype: torch.dtype = torch.float32, **other):
    torch.manual_seed(0)
    model = ch.build("gpt", **{**{**KINDS, **REAL}[kind], "depth": depth, **other}).eval()
    for name, p in model.named_parameters():
        wide = p.ndim > 1 and "table" not in name
        torch.nn.init.normal_(p, mean=0.0 if p.ndim > 1 else 0.5, std=p.shape[1] ** -0.5 if wide else 0.5)
    return model.to(DEVICE, dtype)


def begun(model, rows: int, ragged: bool, *, read: int = 13, limit: int = LIMIT, **options):
    """A state after a prompt, a decoder that continues from it, and the last token of each row."""
    ids = torch.randint(0, model.config.vocab, (rows, read + 1), device=DEVICE)
    state = model.start({}, rows, limit=limit)
    counts = torch.arange(rows, device=DEVICE) * 5 % read + 1 if ragged else None
    model.read(ids[:, :read], state, counts)
    decoder = GpuDecoder.of(model.decoder_stack, rows, limit, **options)
    assert decoder is not None
    caches = state.kv.caches
    first = caches[0]
    decoder.begin([c.k for c in caches], [c.v for c in caches], first.at, ids[:, -1], first.furthest)
    return state, decoder, ids[:, -1:]


class Worst:
    """The largest relative error under each name; exits if one is above the tolerance."""

    def __init__(self, label: str, tolerance: float) -> None:
        self.label, self.tolerance, self.errors = label, tolerance, {}

    def __call__(self, name: str, result: torch.Tensor, expected: torch.Tensor) -> None:
        error = ((result.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-9)).item()
        self.errors[name] = max(error, self.errors.get(name, 0.0))
        if not error <= self.tolerance:
            sys.exit(f"{self.label}: {name} is off by {error:.2e}")

    def __str__(self) -> str:
        return f"{self.label:44s} " + "  ".join(f"{name} {error:.0e}" for name, error in self.errors.items())


@torch.no_grad()
def one_block(kind: str, rows: int, ragged: bool, dtype: torch.dtype = torch.float32, **options) -> Worst:
    """Every kernel alone, each with the input that the modules compute."""
    model = build(kind, dtype=dtype)
    state, decoder, last = begun(model, rows, ragged, **options)
    exact = copy.deepcopy(model).float()
    worst = Worst(f"{kind}, {rows} rows, {dtype}", 1e-5 if dtype == torch.float32 else 1e-2)
    block, cache, at = exact.blocks[0], state.kv.caches[0], state.kv.positions(1)
    x = exact.positions.add(exact.embed(last), at)
    worst("begin", decoder.residual, x[:, 0])
    decoder.residual.copy_(x[:, 0])
    decoder.project_qkv(decoder.layers[0], decoder.k[0], decoder.v[0])
    y = block.attn_norm(x)
    q, k, v = (
        m(y).unflatten(-1, (-1, decoder.head_width)).transpose(1, 2)
        for m in (block.attn.query, block.attn.key, block.attn.value)
    )
    q, k = exact.positions.turn(q, k, at)
    row = torch.arange(rows, device=DEVICE)
    worst("q", decoder.q.view(q[:, :, 0].shape), q[:, :, 0])
    worst("k", decoder.k[0][row, :, at[:, 0]], k[:, :, 0])
    worst("v", decoder.v[0][row, :, at[:, 0]], v[:, :, 0])
    decoder.q.copy_(q.flatten(1))
    mask = cache.mask(window=model.config.window)
    keys, values = (z.float() for z in cache.append(k.to(dtype), v.to(dtype)))
    for mine, given in ((decoder.k[0], keys), (decoder.v[0], values)):
        mine[:, :, : given.shape[2]].copy_(given)
    want = attend(q, keys, values, mask=mask, score=block.attn.score)[:, :, 0].flatten(1)
    for _ in range(2):  # the second time with the counters that the first has left
        for left in (decoder.partial_out, decoder.lse, decoder.attention_out):
            left.fill_(torch.nan)
        decoder.attend(decoder.layers[0], decoder.k[0], decoder.v[0])
        worst("attend", decoder.attention_out, want)
    decoder.attention_out.copy_(want)
    x = x + block.attn.out(want[:, None])
    decoder.add_projection("out", decoder.attention_out, decoder.layers[0].out, decoder.layers[0].out_bias)
    worst("out", decoder.residual, x[:, 0])
    decoder.residual.copy_(x[:, 0])
    mlp, y = block.mlp, block.mlp_norm(x)
    y = F.silu(mlp.gate(y)) * mlp.up(y) if mlp.gate is not None else ACTIVATIONS[mlp.kind](mlp.up(y))
    hidden = decoder.project_mlp(decoder.layers[0])
    worst("up", hidden, y[:, 0])
    x = x + mlp.down(y)
    decoder.add_projection("down", y[:, 0].to(dtype), decoder.layers[0].down, decoder.layers[0].down_bias)
    worst("down", decoder.residual, x[:, 0])
    decoder.residual.copy_(x[:, 0])
    logits = exact.head(exact.norm(x))[:, 0]
    worst("logits", decoder.project_logits(), logits)
    best, logp = decoder.logits.argmax(-1), decoder.logits.log_softmax(-1)
    decoder.append_token()
    assert torch.equal(decoder.token, best)
    assert torch.equal(decoder.tokens[0], best)
    assert torch.equal(decoder.at, at[:, 0] + 1)
    worst("probability", decoder.scores[0].exp(), logp.gather(1, best[:, None])[:, 0].exp())
    worst("next input", decoder.residual, exact.positions.add(exact.embed(best[:, None]), at + 1)[:, 0])
    return worst


@torch.no_grad()
def steps(kind: str, rows: int, ragged: bool, tokens: int, dtype: torch.dtype = torch.float32, **options) -> Worst:
    """The whole step against the model's own, over several tokens."""
    model = build(kind, depth=2, dtype=dtype)
    state, decoder, last = begun(model, rows, ragged, **options)
    worst = Worst(f"{kind}, {rows} rows, {tokens} tokens, {dtype}", 1e-5 if dtype == torch.float32 else 3e-2)
    for i in range(tokens):
        want, state = model.step(last, state)
        worst("logits", decoder(), want[:, 0])
        if i % 2:  # a given token
            last = torch.randint(0, model.config.vocab, (rows, 1), device=DEVICE)
            decoder.append_token(last[:, 0], torch.full((rows,), float(i), device=DEVICE))
        else:
            decoder.append_token()
            last = decoder.token[:, None].clone()
        assert torch.equal(decoder.tokens[i], last[:, 0])
    return worst


def searches(kind: str, dtype: torch.dtype, limit: int) -> None:
    """A search by a graph gives what one by steps gives: ends, limits, sampling, and hooks set during the search."""
    model = build(kind, depth=2, dtype=dtype)
    torch.manual_seed(1)
    prompts = [torch.randint(0, V, (n,)).tolist() for n in (4, 7, 2)]
    plain = {"start": prompts, "end": None, "limit": limit}
    cases = {
        "greedy": plain,
        "limits": {**plain, "end": [3, 5], "limit": [2, limit, limit - 1]},
        "banned, repetition": {**plain, "banned": [1, 2], "choice": Choice(repetition=1.3)},
        "ended": {**plain, "ended": lambda row, ids: len(ids) > row + 1},
        "sampled": {**plain, "best": 2, "choice": SAMPLED},
    }
    if model.config.positions == "learned":
        cases["slide"] = {**plain, "limit": 44, "slide": True}
    for label, options in cases.items():
        used = []
        by_graph, original = search(model, {}, Plan(**options)), cuda_graph.GraphDecoder.of
        cuda_graph.GraphDecoder.of = staticmethod(lambda *a, used=used: used.append(1))
        try:
            by_steps = search(model, {}, Plan(**options))
        finally:
            cuda_graph.GraphDecoder.of = original
        assert used, "the search did not try to use a graph"
        for a, b in zip(by_graph, by_steps, strict=True):
            for one, other in zip(a, b, strict=True):
                assert one.finished == other.finished or dtype != torch.float32, (label, one, other)
                same = sum(x == y for x, y in zip(one.ids, other.ids, strict=False))
                if dtype == torch.float32:
                    assert one.ids == other.ids, (label, same, one, other)
                    assert abs(one.logprob - other.logprob) < 1e-3 * max(1, len(one.ids)), (label, one, other)
        print(f"search: {kind}, {label}, {dtype}: the same")
    want = [tuple(h[0].ids) for h in search(model, {}, Plan(**plain))]
    texts, calls = {0: [], 1: [], 2: []}, []
    for i, new in enumerate(stream(model, {}, Plan(**plain))):
        for row, token in new.items():
            texts[row].append(token)
        if i == 2:  # a hook is set: the modules compute the remaining steps
            hook = model.blocks[0].mlp.register_forward_hook(lambda *_: calls.append(1))
    hook.remove()
    assert len(calls) == limit - 3
    if dtype == torch.float32:
        assert [tuple(texts[row]) for row in range(3)] == want
    print(f"search: {kind}, a hook set during the search, {dtype}: the same")
    one, other = ([list(new.values()) for new in stream(model, {}, Plan(**plain))] for _ in range(2))
    both = list(zip(stream(model, {}, Plan(**plain)), stream(model, {}, Plan(**plain)), strict=True))
    assert one == other == [list(new.values()) for new, _ in both] == [list(new.values()) for _, new in both]
    print(f"search: {kind}, two searches at a time, {dtype}: the same")


@torch.no_grad()
def graphs(kind: str, rows: int, dtype: torch.dtype, tokens: int) -> None:
    """A replayed graph gives the same bits as its kernels launched one by one; in float32, the modules' tokens."""
    model = build(kind, depth=2, dtype=dtype, context=tokens + 40)
    options = {"read": 13, "limit": tokens + 40}
    results = []
    for captures in (True, False):
        torch.manual_seed(3)
        state, decoder, last = begun(model, rows, True, **options)
        graph = cuda_graph.Graph(decoder, Choice(), ()) if captures else None
        if graph is not None:
            graph.begin(state, last, None, None)
            graph.run(0, tokens)
            torch.cuda.synchronize()
        else:
            for _ in range(tokens):
                decoder()
                decoder.append_token()
        results.append((decoder.tokens[:tokens].clone(), decoder.scores[:tokens].clone()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    if dtype == torch.float32:
        torch.manual_seed(3)
        state, _, last = begun(model, rows, True, **options)
        for i in range(tokens):
            logits, state = model.step(last, state)
            last = logits[:, -1].argmax(-1, keepdim=True)
            assert torch.equal(last[:, 0], results[0][0][i]), f"{kind}, {rows} rows: token {i}"
    print(f"graph: {kind}, {rows} rows, {dtype}: {tokens} tokens the same")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["blocks", "steps", "search", "graphs"])
    parser.add_argument("--only", choices=[*KINDS, *REAL])
    parser.add_argument("--rows", default=f"1,{LANE_ROWS - 1},{LANE_ROWS + 1},{KERNEL_ROWS + 1}")
    args = parser.parse_args()
    rows = [int(n) for n in args.rows.split(",")]
    kinds = [args.only] if args.only else [*KINDS, *(REAL if GPU else {})]
    dtypes = (torch.float32, torch.bfloat16) if GPU else (torch.float32,)
    small = [
        {"key_block": 16, "splits": n, **({"pdl": pdl} if GPU else {})} for n, pdl in ((1, False), (2, True), (4, True))
    ]
    if not GPU:
        gpu_decode.choose_tile = lambda *_, **__: COARSE["qkv"]
        gpu_decode.LOGIT_BLOCKS = 1  # so that several rounds are needed, as with a large vocabulary
    for kind in kinds:
        for i, n in enumerate(rows):
            for dtype in dtypes:
                options = small[(i + len(kind)) % 3]
                if not GPU:
                    options = {**options, "key_block": 4, "tiles": FINE if (i + len(kind)) % 2 else COARSE}
                if "blocks" in args.parts:
                    print(one_block(kind, n, n > 1, dtype, **options))
                if "steps" in args.parts:
                    print(steps(kind, n, n > 1, 4 if not GPU else 8, dtype, **options))
                if "graphs" in args.parts:
                    graphs(kind, n, dtype, 200)
        if "search" in args.parts and kind not in REAL:
            for dtype in dtypes:
                searches(kind, dtype, 5 if not GPU else 30)


if __name__ == "__main__":
    main()
