"""The streaming kernels against the float64 full matrix: on a GPU, or in Triton's interpreter where Triton is."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead import look, watch
from clearhead.layers import Mask
from clearhead.look.maps import statistics_cuda
from clearhead.look.maps.call import LazyCall

STATISTICS = ["**.entropy", "**.distance", "**.received"]
CASES = Path(__file__).with_name("statistics_cuda_cases.py")


def our_gpt():
    ids = torch.randint(0, 9, (1, 512))
    return clearhead.build("gpt", vocab=9, context=512, width=128, depth=2, heads=2), ids, STATISTICS


def their_encoder():
    layer = torch.nn.TransformerEncoderLayer(128, 2, 128, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(1, 512, 128), STATISTICS


def our_vit():
    model = clearhead.build("vit", size=256, patch=16, width=128, depth=2, heads=2)
    return model, torch.randn(1, 3, 256, 256), ["blocks.*.attn.weights"]


def run(*words: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CASES), *words], capture_output=True, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, which comes with a CUDA build of torch")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs them below")
@pytest.mark.parametrize("label", ["causal", "offsets", "window, everything"])
def test_all_statistics_in_the_interpreter(label):
    run("float32", label, TRITON_INTERPRET="1")


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_all_statistics_on_a_gpu():
    run("float32,float16,bfloat16")


def test_a_call_on_a_cpu_is_left_to_the_reference():
    q = torch.zeros(1, 1, 4, 8)
    assert not statistics_cuda.serves(LazyCall(q=q, k=q, mask=Mask(), bias=None, scale=1.0))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode", "ignore:torch's fast path")
@pytest.mark.parametrize("build", [our_gpt, their_encoder, our_vit])
def test_a_watched_pass_never_waits_for_the_gpu(build):
    model, given, names = build()
    model = model.cuda().bfloat16().eval()
    given = given.cuda() if given.dtype == torch.int64 else given.cuda().bfloat16()

    def keep(map):
        return look.statistics(map.sources[0], "entropy", "distance", grid=(16, 16), special=1)

    with torch.no_grad():
        for mode in ("default", "error"):  # the first pass compiles the kernels, and compares two of torch's
            torch.cuda.set_sync_debug_mode(mode)
            try:
                with watch(model, *names, keep=keep if names == ["blocks.*.attn.weights"] else "all"):
                    model(given)
            finally:
                torch.cuda.set_sync_debug_mode("default")
