"""Devices and dtypes by name."""

import pytest
import torch

from clearhead.devices import find_device, find_dtype


@pytest.fixture
def devices(monkeypatch):
    """Pretend that this machine has these kinds of devices beside a CPU."""

    def pretend(*kinds, gpus=1):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in kinds)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus if "cuda" in kinds else 0)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in kinds)
        monkeypatch.delenv("LOCAL_RANK", raising=False)

    return pretend


@pytest.mark.parametrize(
    ("kinds", "expected"), [(("cuda", "mps"), "cuda"), (("cuda",), "cuda"), (("mps",), "mps"), ((), "cpu")]
)
def test_auto_is_the_first_available_of_cuda_mps_and_cpu(kinds, expected, devices):
    devices(*kinds)
    assert find_device("auto") == torch.device(expected)


def test_a_device_that_is_not_here_is_refused(devices):
    devices("mps")
    with pytest.raises(ValueError, match="device='cuda': there is no such device here; expected one of mps, cpu"):
        find_device("cuda")
    devices("cuda", gpus=2)
    with pytest.raises(ValueError, match="device='mps': there is no such device here; expected one of cuda, cpu"):
        find_device(torch.device("mps"))
    with pytest.raises(ValueError, match="device='cuda:2': the CUDA devices here are cuda:0 to cuda:1"):
        find_device("cuda:2")
    for name in ("gpu", "", "cuda:x"):
        with pytest.raises(ValueError, match=f"device='{name}': expected auto, cpu, cuda, cuda:1 or mps"):
            find_device(name)


def test_cuda_is_the_gpu_of_this_process_under_torchrun(devices, monkeypatch):
    devices("cuda", gpus=2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert find_device("auto") == find_device("cuda") == torch.device("cuda", 1)
    assert find_device("cuda:0") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="the CUDA devices here are cuda:0 to cuda:1"):
        find_device("cuda")


def test_dtypes_by_name():
    assert find_dtype("bfloat16") == find_dtype(torch.bfloat16) == torch.bfloat16
    assert find_dtype(None) is None
    with pytest.raises(ValueError, match=r"dtype='bfloat61': expected one of float32, .*int8; the nearest .*bfloat16"):
        find_dtype("bfloat61")
