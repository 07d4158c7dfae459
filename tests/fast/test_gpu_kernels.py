"""The decode step on a GPU against the modules that it replaces: on a GPU, or in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import clearhead as ch
from clearhead.fast import gpu_decode
from clearhead.fast.gpu_decode import GpuDecoder, choose_tile

CASES = Path(__file__).with_name("gpu_cases.py")
interpreted = pytest.mark.skipif(
    find_spec("triton") is None or torch.cuda.is_available(),
    reason="needs triton, which comes with a CUDA build of torch; with a GPU, the tests on the GPU run instead",
)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def run(*words: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CASES), *words], capture_output=True, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@interpreted
@pytest.mark.parametrize(
    "words",
    [
        ("blocks", "--only", "gpt2", "--rows", "1,5"),
        ("blocks", "--only", "llama", "--rows", "2,17"),
        ("blocks", "--only", "mistral", "--rows", "3"),
        ("blocks", "--only", "odd heads", "--rows", "2"),
        ("steps", "--only", "qwen2", "--rows", "3"),
    ],
    ids=" ".join,
)
def test_kernels_equal_the_modules_in_the_interpreter(words):
    run(*words, TRITON_INTERPRET="1")


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize("part", ["blocks", "steps", "search"])
def test_kernels_of_all_models_equal_the_modules_in_the_interpreter(part):
    run(part, TRITON_INTERPRET="1")


@pytest.mark.cuda
@on_gpu
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_kernels_equal_the_modules_on_the_gpu(kind):
    run("blocks", "steps", "search", "graphs", "--only", kind, "--rows", "1,5")


@pytest.mark.cuda
@pytest.mark.slow
@on_gpu
def test_kernels_of_all_models_equal_the_modules_on_the_gpu():
    run("blocks", "steps", "search", "graphs")


@torch.no_grad()
def test_only_supported_models_without_hooks_get_a_gpu_decoder(monkeypatch):
    """Without a GPU or Triton, with an unsupported option or with a hook, the modules compute the step."""

    def of(**options):
        model = ch.build("gpt", **{"vocab": 7, "width": 8, "depth": 1, "heads": 2, "context": 9, **options}).eval()
        return GpuDecoder.of(model.decoder_stack, 1, 5)

    assert of() is None  # there is no GPU
    monkeypatch.setattr(gpu_decode, "INTERPRETED", True)
    monkeypatch.setattr(gpu_decode, "AVAILABLE", True)
    assert of() is not None
    for options in ({"positions": "alibi"}, {"order": "post"}, {"score": "cosine"}, {"project": "k=v"}, {"depth": 0}):
        assert of(**options) is None, options
    with torch.enable_grad():
        assert of() is None
    decoder = of()
    assert decoder.unhooked
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not decoder.unhooked
    handle.remove()


@pytest.mark.parametrize("columns", [8, 64, 768, 2048, 3072, 5632, 16384])
@pytest.mark.parametrize("bytes_", [2, 4])
def test_tiles_keep_every_thread_busy(columns, bytes_):
    """Each thread of a program loads 16 bytes of a row at a time, or the program is one warp."""
    for rows in (1, 2, 4, 5, 16):
        t = choose_tile(4096, columns, rows, bytes_=bytes_)
        assert t.warps == 1 or rows > gpu_decode.LANE_ROWS or t.columns * bytes_ >= 16 * 32 * t.warps
        assert t.columns & (t.columns - 1) == t.outputs & (t.outputs - 1) == 0
