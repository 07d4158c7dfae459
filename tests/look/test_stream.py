"""The streaming kernels against the float64 full matrix: on a GPU, or in Triton's interpreter where Triton is."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from clearhead.layers import Mask
from clearhead.look import stream
from clearhead.look.call import LazyCall

CASES = Path(__file__).with_name("stream_cases.py")


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
    assert not stream.serves(LazyCall(q=q, k=q, mask=Mask(), bias=None, scale=1.0))
