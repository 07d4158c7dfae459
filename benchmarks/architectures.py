"""Maps and edits of models that are not ours: 60 architectures of transformers and 40 of timm against plain hooks.

    python benchmarks/architectures.py [transformers|timm] [--only NAME,...] [-o docs/results/architectures.json]

Every model is small or untrained, with random weights. It runs plain, watched and edited, on inputs with and without
padding, and those that write also in `generate`. What must hold:

- the watched output is the plain one to the bit;
- each map is a softmax that the same model computes with eager attention, found without clearhead;
- an edit that silences a head equals a forward hook that zeroes its slice of what the output projection reads.

Anything else is `wrong`, unless a Notice or a refusal said so: then the architecture is listed with those words.
timm needs torchvision; both can lie in a folder of their own on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import clearhead as ch
from clearhead.errors import Notice

VOCAB, TOKENS = 40, 7
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
GPT2 = {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64, **SPECIAL}
GPT = {**BERT, **SPECIAL}
LLAMA = {**GPT, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
BART = {"vocab_size": VOCAB, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 30, "decoder_ffn_dim": 30, "max_position_embeddings": 64,
        **SPECIAL, "decoder_start_token_id": 1, "forced_eos_token_id": None, "forced_bos_token_id": None}  # fmt: skip
T5 = {"vocab_size": VOCAB, "d_model": 24, "d_kv": 8, "d_ff": 30, "num_layers": 2, "num_heads": 3, **SPECIAL,
      "decoder_start_token_id": 0}  # fmt: skip
IMAGE = {**BERT, "image_size": 12, "patch_size": 4, "num_channels": 3}

# Class, options: the models of transformers, by what they are given.
TEXT = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt-neo": ("GPTNeoForCausalLM", {"vocab_size": VOCAB, "hidden_size": 24, "num_layers": 2, "num_heads": 3,
                                      "attention_types": [[["global", "local"], 1]], "window_size": 4, **SPECIAL}),
    "gpt-j": ("GPTJForCausalLM", {**GPT2, "rotary_dim": 4}),
    "gpt-neox": ("GPTNeoXForCausalLM", GPT),
    "gpt-bigcode": ("GPTBigCodeForCausalLM", GPT2),
    "gpt-oss": ("GptOssForCausalLM", {**LLAMA, **WINDOW, "num_local_experts": 4}),
    "codegen": ("CodeGenForCausalLM", {**GPT2, "n_embd": 32, "n_head": 4, "rotary_dim": 4}),
    "opt": ("OPTForCausalLM", {**GPT, "ffn_dim": 30, "word_embed_proj_dim": 24}),
    "bloom": ("BloomForCausalLM", {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": 2, "n_head": 3, **SPECIAL}),
    "falcon": ("FalconForCausalLM", {**GPT, "num_attention_heads": 4, "multi_query": True}),
    "mpt": ("MptForCausalLM", {"vocab_size": VOCAB, "d_model": 24, "n_heads": 3, "n_layers": 2, "max_seq_len": 64,
                               **SPECIAL}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "mixtral": ("MixtralForCausalLM", {**LLAMA, "num_local_experts": 4}),
    "ministral": ("MinistralForCausalLM", {**LLAMA, **WINDOW}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen2-moe": ("Qwen2MoeForCausalLM", {**LLAMA, **EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3": ("Qwen3ForCausalLM", LLAMA),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {**LLAMA, **EXPERTS}),
    "gemma": ("GemmaForCausalLM", LLAMA),
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA, "sliding_window": 4}),
    "gemma3": ("Gemma3ForCausalLM", {**LLAMA, **WINDOW}),
    "phi": ("PhiForCausalLM", GPT),
    "phi3": ("Phi3ForCausalLM", LLAMA),
    "olmo": ("OlmoForCausalLM", LLAMA),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "olmo3": ("Olmo3ForCausalLM", {**LLAMA, **WINDOW}),
    "cohere": ("CohereForCausalLM", LLAMA),
    "cohere2": ("Cohere2ForCausalLM", {**LLAMA, **WINDOW}),
    "stablelm": ("StableLmForCausalLM", LLAMA),
    "starcoder2": ("Starcoder2ForCausalLM", LLAMA),
    "granite": ("GraniteForCausalLM", LLAMA),
    "smollm3": ("SmolLM3ForCausalLM", LLAMA),
    "nemotron": ("NemotronForCausalLM", LLAMA),
    "glm": ("GlmForCausalLM", LLAMA),
    "deepseek-v3": ("DeepseekV3ForCausalLM", {**LLAMA, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8,
                                              "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5,
                                              "n_group": 1, "first_k_dense_replace": 2, "topk_group": 1,
                                              "head_dim": 4}),
    "biogpt": ("BioGptForCausalLM", GPT),
    "xglm": ("XGLMForCausalLM", {"vocab_size": VOCAB, "d_model": 24, "num_layers": 2, "attention_heads": 3,
                                 "ffn_dim": 30, "max_position_embeddings": 64, **SPECIAL}),
    "jamba": ("JambaForCausalLM", {**LLAMA, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
                                   "num_experts": 2, "use_mamba_kernels": False, "mamba_d_state": 4,
                                   "mamba_dt_rank": 4}),
    "bert": ("BertModel", BERT),
    "roberta": ("RobertaModel", GPT),
    "distilbert": ("DistilBertModel", {"vocab_size": VOCAB, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 30}),
    "albert": ("AlbertModel", {**BERT, "embedding_size": 12}),
    "electra": ("ElectraModel", {**BERT, "embedding_size": 12}),
    "mpnet": ("MPNetModel", GPT),
    "deberta-v2": ("DebertaV2Model", {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "modernbert": ("ModernBertModel", {**GPT, "cls_token_id": 3, "sep_token_id": 4, "local_attention": 4}),
    "ernie": ("ErnieModel", BERT),
    "esm": ("EsmModel", {**BERT, "position_embedding_type": "rotary", "mask_token_id": 5}),
    "t5": ("T5ForConditionalGeneration", T5),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", BART),
    "mbart": ("MBartForConditionalGeneration", BART),
    "m2m-100": ("M2M100ForConditionalGeneration", BART),
    "marian": ("MarianMTModel", {**BART, "decoder_start_token_id": 0}),
    "pegasus": ("PegasusForConditionalGeneration", BART),
}  # fmt: skip
OTHER = {
    "vit": ("ViTModel", IMAGE, {"pixel_values": (2, 3, 12, 12)}),
    "dinov2": ("Dinov2Model", IMAGE, {"pixel_values": (2, 3, 12, 12)}),
    "dinov3": ("DINOv3ViTModel", {**IMAGE, "num_attention_heads": 3}, {"pixel_values": (2, 3, 12, 12)}),
    "siglip": ("SiglipVisionModel", IMAGE, {"pixel_values": (2, 3, 12, 12)}),
    "swin": ("SwinModel", {"image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3],
                           "window_size": 4}, {"pixel_values": (2, 3, 16, 16)}),
    "whisper": ("WhisperForConditionalGeneration", {**BART, "num_mel_bins": 8, "max_source_positions": 9,
                                                    "max_target_positions": 64}, {"input_features": (2, 8, 18)}),
}  # fmt: skip
TIMM = [
    "vit_tiny_patch16_224", "vit_small_patch32_224", "vit_relpos_small_patch16_224",
    "vit_small_patch14_reg4_dinov2", "flexivit_small", "deit_tiny_distilled_patch16_224", "deit3_small_patch16_224",
    "beit_base_patch16_224", "vit_wee_patch16_reg1_gap_256", "eva02_tiny_patch14_224", "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256", "swinv2_cr_tiny_ns_224", "cait_xxs24_224", "volo_d1_224", "pit_ti_224",
    "pit_ti_distilled_224", "pvt_v2_b0", "twins_svt_small", "twins_pcpvt_small", "crossvit_tiny_240", "levit_128s",
    "nest_tiny", "maxvit_pico_rw_256", "coatnet_nano_rw_224", "tnt_s_patch16_224", "convit_tiny", "mvitv2_tiny",
    "hiera_tiny_224", "efficientvit_m0", "mobilevit_xxs", "mobilenetv4_hybrid_medium", "edgenext_xx_small",
    "davit_tiny", "gcvit_xxtiny", "visformer_tiny", "tiny_vit_5m_224", "efficientformer_l1", "botnet26t_256",
    "caformer_s18",
]  # fmt: skip
# they add the queries to what the heads give, which no hook behind them can tell apart
ADDED = {"mvitv2_tiny"}
HEADS_LAST = {"nest_tiny"}  # they join the heads as (head dimension, heads)
# attention modules of a model in which heads are silenced, the first and others at equal distances
EDITED = 6
PROJECTIONS = ("o_proj", "out_proj", "c_proj", "out_lin", "proj_out", "Wo", "wo", "o", "dense", "proj", "output", "out",
               "output.dense", "proj_conv", "projection")  # fmt: skip


class Softmaxes(TorchFunctionMode):
    """Every result of a softmax, as the model computed it."""

    def __init__(self) -> None:
        self.results: list[Tensor] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        # of torch.nn: its softmax is inside a fused kernel unless it is asked
        if name == "multi_head_attention_forward":
            asked = {**kwargs, "need_weights": True, "average_attn_weights": False}
            self.results.append(function(*args, **asked)[1])
        out = function(*args, **kwargs)
        if name in {"softmax", "_safe_softmax"}:
            self.results.append(out.detach().float())
        return out


@contextmanager
def silenced(module: nn.Module, head: int, heads: int, last: bool) -> Iterator[None]:
    """Zero the numbers of a head in what the output projection reads, by a plain hook; `last`: heads vary fastest."""

    def zero(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = args[0].clone()
        axis = 1 if isinstance(module, nn.Conv2d) else -1
        if last:
            x.unflatten(-1, (-1, heads))[..., head].zero_()
        else:
            x.unflatten(axis, (heads, -1)).select(axis if axis > 0 else -2, head).zero_()
        return (x, *args[1:])

    handle = module.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        handle.remove()


def projection(model: nn.Module, path: str) -> nn.Module | None:
    """The module that mixes the heads of an attention module: its own child, or one of its parent's."""
    modules = dict(model.named_modules())
    for place in (path, path.rpartition(".")[0]):
        for name in PROJECTIONS:
            weight = getattr(modules.get(f"{place}.{name}".strip(".")), "weight", None)
            if weight is not None and weight.ndim in {2, 4}:
                return modules[f"{place}.{name}".strip(".")]
    return None


def tensor_of(out: Any) -> Tensor:
    """The first tensor of a model's output."""
    if isinstance(out, Tensor):
        return out
    for name in ("logits", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    return next(iter(out)) if isinstance(out, (list, tuple)) else out[0]


def close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    return not a.numel() or bool((a - b).abs().max() <= 2e-5 * b.abs().max().clamp(min=1e-6))


class Check:
    """One architecture: what was compared, what was said, what is wrong."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.compared: dict[str, int] = {}
        self.said: set[str] = set()
        self.wrong: list[str] = []

    def same(self, what: str, equal: bool, place: str) -> None:
        self.compared[what] = self.compared.get(what, 0) + 1
        if not equal:
            self.wrong.append(f"{what}: {place}")

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Notices and refusals of clearhead are kept, anything else passes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except ch.errors.UserError as error:
                self.said.add(f"refused: {error}")
        self.said |= {f"notice: {w.message}" for w in caught if issubclass(w.category, Notice)}


@torch.no_grad()
def examine(
    check: Check,
    model: nn.Module,
    eager: nn.Module,
    run: Callable[[nn.Module], Tensor],
    *,
    what: str,
    writes: bool = False,
) -> None:
    """Compare one way to run a model: `run(model)` gives its output, or the ids that it writes."""
    plain = run(model)
    with Softmaxes() as reference:
        run(eager)
    shown: list[tuple[str, Any]] = []
    with check.listening():
        with ch.watch(model, "**.weights") as tape:
            watched = run(model)
        shown = [
            (name, call)
            for name in tape.names
            for call in (tape.calls(name) if writes else [tape[name]])
        ]
        check.same(f"{what}: output", torch.equal(plain, watched), "watched")
    heads_of: dict[str, int] = {}
    for name, attention in shown:
        weights = attention.dense() if hasattr(attention, "dense") else attention
        heads_of[name.removesuffix(".weights").partition("@")[0]] = weights.shape[1]
        known = any(same_map(weights.float(), theirs) for theirs in reference.results)
        check.same(f"{what}: map", known, f"{name} {tuple(weights.shape)}")
    if not shown:
        check.said.add("notice: no attention was seen")
    paths = [] if check.name in ADDED else list(heads_of)
    for path in paths[:: -(-len(paths) // EDITED)] if paths else []:
        heads = heads_of[path]
        module = projection(model, path)
        if module is None:
            check.compared["no projection found"] = check.compared.get("no projection found", 0) + 1
            continue
        for head in {0, heads - 1}:
            with check.listening():
                with silenced(module, head, heads, check.name in HEADS_LAST):
                    wanted = run(model)
                with ch.edit(model, {f"{path}.heads": ch.look.silence([head])}):
                    got = run(model)
                equal = torch.equal(got, wanted) if writes else close(got, wanted)
                check.same(f"{what}: edit", equal, f"{path} head {head} of {heads}")


def same_map(ours: Tensor, theirs: Tensor) -> bool:
    """Whether a softmax of the model is a map of ours.

    It may have one column more, a sink, and lack keys that a sliding window has forgotten: they weigh 0 in ours.
    Queries that may attend to nothing are left out: eager attention spreads their weights evenly.
    """
    # heads before windows (Nest, Hiera), or after them: of ours each window is a row
    if theirs.ndim == 5:
        return any(
            same_map(ours, windows.flatten(0, 1)) for windows in (theirs, theirs.transpose(1, 2))
        )
    if theirs.ndim == 4 and theirs.shape[:-1] != ours.shape[:-1]:
        return False
    ours, theirs = ours.flatten(0, -2), theirs.flatten(0, -2)
    if len(ours) != len(theirs):
        return False
    rows = ours.sum(-1) > 0
    for sink in (0, 1):
        keys = theirs.shape[1] - sink
        forgotten = ours.shape[1] - keys
        if keys < 1 or forgotten < 0 or ours[:, :forgotten].any():
            continue
        if close(ours[rows, forgotten:], theirs[rows, :keys]):
            return True
    return False


def build(kind: str, options: dict[str, Any], how: str) -> nn.Module:
    import transformers

    family = getattr(transformers, kind)
    torch.manual_seed(0)
    model = family._from_config(family.config_class(**options), attn_implementation=how).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape) * 0.2)
    return model


def of_transformers(name: str) -> Check:
    check = Check(name)
    kind, options = (TEXT.get(name) or OTHER[name])[:2]
    eager = build(kind, options, "eager")
    try:
        model = build(kind, options, "sdpa")
    except ValueError:  # it has eager attention only
        model = eager
    torch.manual_seed(1)
    if name in OTHER:
        given = {key: torch.randn(shape) for key, shape in OTHER[name][2].items()}
        if name == "whisper":
            given["decoder_input_ids"] = torch.randint(5, VOCAB, (2, TOKENS))
        examine(check, model, eager, lambda m: tensor_of(m(**given)), what="forward")
        return check
    ids = torch.randint(5, VOCAB, (2, TOKENS))
    pair = getattr(model.config, "is_encoder_decoder", False)
    writes = model.can_generate()
    for padding in ("no padding", "left", "right"):
        given = {"input_ids": ids}
        if padding != "no padding":
            mask = torch.ones_like(ids)
            mask[1, slice(0, 3) if padding == "left" else slice(-3, None)] = 0
            given["attention_mask"] = mask
        more = {"decoder_input_ids": ids[:, :4]} if pair else {}
        examine(
            check,
            model,
            eager,
            lambda m, g={**given, **more}: tensor_of(m(**g)),
            what=f"forward, {padding}",
        )
        if writes and padding != "right":
            settings = {
                "max_new_tokens": 6,
                "min_new_tokens": 6,
                "do_sample": False,
                "pad_token_id": 0,
            }

            def write(
                m: nn.Module, given: dict[str, Any] = given, settings: dict[str, Any] = settings
            ) -> Tensor:
                return m.generate(**given, **settings)

            examine(check, model, eager, write, what=f"generate, {padding}", writes=True)
    return check


def of_timm(name: str) -> Check:
    import timm
    from timm.layers import set_fused_attn

    check = Check(name)
    torch.manual_seed(0)
    set_fused_attn(True)
    model = timm.create_model(name, num_classes=5).eval()
    set_fused_attn(False)
    eager = timm.create_model(name, num_classes=5).eval()
    set_fused_attn(True)
    eager.load_state_dict(model.state_dict())
    torch.manual_seed(1)
    x = torch.randn(1, *model.default_cfg["input_size"])
    examine(check, model, eager, lambda m: tensor_of(m(x)), what="forward")
    return check


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", nargs="?", choices=["transformers", "timm"])
    parser.add_argument("--only", default="")
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    jobs = [
        (name, of_transformers)
        for name in {**TEXT, **OTHER}
        if asked.which in {None, "transformers"}
    ]
    jobs += [(name, of_timm) for name in TIMM if asked.which in {None, "timm"}]
    if asked.only:
        jobs = [job for job in jobs if job[0] in asked.only.split(",")]
    rows = []
    for name, job in jobs:
        try:
            check = job(name)
        except Exception as error:
            # the survey goes on; a crash of one architecture is wrong as well
            check = Check(name)
            check.wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
        row = {
            "name": name,
            "compared": sum(check.compared.values()),
            "wrong": check.wrong,
            "said": sorted(check.said),
            "checks": check.compared,
        }
        rows.append(row)
        state = "WRONG" if check.wrong else "said" if check.said else "ok"
        print(
            f"{name:36s} {state:6s} {row['compared']:4d}",
            *check.wrong[:3],
            *sorted(check.said)[:2],
            sep="  ",
            flush=True,
        )
    wrong, said = (
        sum(bool(r["wrong"]) for r in rows),
        sum(bool(r["said"]) and not r["wrong"] for r in rows),
    )
    print(
        f"{len(rows)} architectures, {sum(r['compared'] for r in rows)} comparisons: {wrong} wrong, {said} with a word"
    )
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
