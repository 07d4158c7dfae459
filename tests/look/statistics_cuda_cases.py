"""The streaming kernels with every kind of mask, bias, grouping and place; as a script it prints the largest errors.

On a machine with CUDA the kernels really run; elsewhere Triton's interpreter does, if TRITON_INTERPRET=1.
"""

import sys

import torch

from clearhead.layers import Alibi, Bias, Mask, Relative
from clearhead.look.maps import statistics_cuda
from clearhead.look.maps.call import LazyCall
from clearhead.look.maps.statistics import MEANING, statistics

torch.manual_seed(0)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def cases():
    def at(n, first=0):
        return torch.arange(first, first + n, device=DEVICE)

    relative = Relative(4, buckets=8, reach=16).to(DEVICE)
    torch.nn.init.normal_(relative.table)
    alibi = Alibi(4).to(DEVICE)
    documents = torch.tensor([[0] * 20 + [1] * 17, [0] * 5 + [1] * 10 + [2] * 22], device=DEVICE)
    allow = torch.rand(2, 1, 37, 37, device=DEVICE) > 0.3
    allow[1, :, 3] = False
    full = (37, 37)
    yield "free", full, Mask(), None
    yield "causal", full, Mask(causal=True), None
    yield "causal chunk", (9, 37), Mask(causal=True, offset=28), None
    yield "cross", (23, 37), Mask(), None
    yield "lengths", full, Mask(lengths=[37, 0]), None
    yield "causal, lengths", full, Mask(causal=True, lengths=[30, 11]), None
    yield "window", full, Mask(window=5), None
    yield "causal window", full, Mask(causal=True, window=3), None
    yield "offsets", (9, 37), Mask(causal=True, offset=[3, 28]), None
    yield "documents", full, Mask(causal=True, documents=documents), None
    yield "allow", full, Mask(allow=allow), None
    yield "allow per head", full, Mask(allow=torch.rand(1, 4, 1, 37, device=DEVICE) > 0.5), None
    yield "alibi", full, Mask(causal=True), alibi.bias(at(37), at(37))
    yield "alibi chunk", (9, 37), Mask(causal=True, offset=28), alibi.bias(at(9, 28), at(37))
    yield "relative", full, Mask(), relative.bias(at(37), at(37)).owned()
    yield "dense", full, Mask(), Bias(dense=torch.randn(1, 4, 37, 37, device=DEVICE))
    some = torch.randn(1, 4, 37, 37, device=DEVICE, dtype=torch.float16)
    yield "dense, half", full, Mask(), Bias(dense=some)
    yield "dense, forbidding", full, Mask(), Bias(dense=some.float().masked_fill(some > 1, float("-inf")))
    yield "past the keys", (3, 37), Mask(window=2000, offset=1000), None
    yield (
        "window, everything",
        full,
        Mask(causal=True, window=9, lengths=[37, 20], allow=allow),
        alibi.bias(at(37), at(37)),
    )


def worst(dtype: torch.dtype, only: list[str]) -> dict[str, float]:
    """The largest error of each statistic over all cases, against the float64 full matrix of the same inputs."""
    errors: dict[str, float] = {}
    for label, (n, m), mask, bias in cases():
        if only and label not in only:
            continue
        for group, scale in ((1, 0.3), (2, 2.0)):
            q = torch.randn(2, n, 4, 24, device=DEVICE, dtype=dtype).transpose(1, 2)
            if label == "free" and DEVICE == "cuda":  # the interpreter has no maximum of NaN
                q[1, 2, 1] = float("nan")  # it must show in the results
            k = torch.randn(2, 4 // group, m, 24, device=DEVICE, dtype=dtype)
            call = LazyCall(q=q, k=k, mask=mask, bias=bias, scale=scale)
            exact = LazyCall(q=q.double(), k=k.double(), mask=mask, bias=bias, scale=scale)
            for grid, special in (None, 0), ((5, 7), 2):
                if grid and n != m:
                    continue
                want = list(MEANING)
                assert statistics_cuda.serves(call), label
                assert not statistics_cuda.serves(exact), label
                got = statistics(call, *want, grid=grid, special=special)
                alone = statistics(call, *(name for name in want if name != "received"), grid=grid, special=special)
                expected = statistics(exact, *want, grid=grid, special=special)
                for name, value in [*got.items(), *alone.items()]:  # by both kernels
                    a, b = value.double(), expected[name].double()
                    assert a.shape == b.shape, (label, name, a.shape, b.shape)
                    assert torch.equal(a.isnan(), b.isnan()), (label, name, "NaN in other places")
                    a, b = a.nan_to_num(), b.nan_to_num()
                    error = (a - b).abs()
                    if name in ("received", "distance", "rms", "position"):
                        error = error / b.abs().clamp_min(1e-3)
                    elif name == "peak":
                        error = (a != b).double() * (expected["maximum"] < 0.999999)
                    most = float(error.max())
                    if not most <= 1e-4:
                        print(f"{dtype} {label} group {group} {name} grid {grid}: {most}", file=sys.stderr)
                    errors[name] = max(errors.get(name, 0.0), most)
    return errors


if __name__ == "__main__":
    # Triton's interpreter multiplies bfloat16 wrongly: there only a GPU can test it.
    kinds, only = sys.argv[1].split(","), sys.argv[2:]
    for kind in kinds:
        errors = worst(getattr(torch, kind), only)
        print(kind, DEVICE, {name: f"{value:.1e}" for name, value in errors.items()})
        if any(not value <= 1e-4 for value in errors.values()):
            sys.exit(f"{kind}: some statistic is off by more than 1e-4")
