"""Speed of ViT-B/16 and ResNet-50 on images of 224 x 224, beside other libraries in one run.

    python benchmarks/vision.py                     # GPU: training and inference, batch 256; timm, torchvision
    python benchmarks/vision.py --device cpu        # inference, batch 1 and 32, beside transformers and ONNX Runtime

On a GPU every model is compiled, in bfloat16 autocast and channels-last where it is convolutional, and training is
forward, cross-entropy, backward and a fused AdamW step. On the CPU all compute in float32 without gradients; ours is a
loaded Bundle, as users have it; with one thread (OMP_NUM_THREADS=1) times are those of the processor, which other work
on the machine hardly changes. A library that is not installed is left out and named. Times are medians of interleaved
rounds, so that a machine that slows down slows all alike. All models have random weights, which does not change times.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import clearhead as ch

MODELS: dict[str, dict[str, Any]] = {
    "vit": {"patch": 16, "width": 768, "depth": 12, "heads": 12},
    "resnet": {"block": "bottleneck", "depths": (3, 4, 6, 3)},
}
TITLES = {"vit": "ViT-B/16", "resnet": "ResNet-50"}
Step = Callable[[], Any]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def peers(family: str, device: str) -> dict[str, nn.Module]:
    """The same model of each library that is there."""
    found: dict[str, nn.Module] = {"clearhead": ch.build(family, **MODELS[family])}
    if device == "cpu" and installed("transformers"):
        import transformers

        config = {"vit": transformers.ViTConfig, "resnet": transformers.ResNetConfig}[family](
            num_labels=1000
        )
        kind = {
            "vit": transformers.ViTForImageClassification,
            "resnet": transformers.ResNetForImageClassification,
        }
        found["transformers"] = kind[family](config)
    if device != "cpu" and installed("timm"):
        import timm

        found["timm"] = timm.create_model(
            {"vit": "vit_base_patch16_224", "resnet": "resnet50"}[family]
        )
    if device != "cpu" and installed("torchvision"):
        import torchvision

        found["torchvision"] = {
            "vit": torchvision.models.vit_b_16,
            "resnet": torchvision.models.resnet50,
        }[family]()
    return found


def logits(out: Any) -> torch.Tensor:
    return out.logits if hasattr(out, "logits") else out


def gpu_steps(model: nn.Module, family: str, rows: int) -> dict[str, Step]:
    """A training step and a forward pass, compiled."""
    layout = torch.channels_last if family == "resnet" else torch.contiguous_format
    model = model.cuda().to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.randn(rows, 3, 224, 224, device="cuda").contiguous(memory_format=layout)
    labels = torch.randint(0, 1000, (rows,), device="cuda")
    training, still = torch.compile(model.train()), torch.compile(copy.deepcopy(model).eval())
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def train() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(logits(training(images)).float(), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    @torch.no_grad()
    def infer() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            still(images)

    return {"training": train, "inference": infer}


def cpu_steps(name: str, model: nn.Module, rows: int) -> dict[str, Step]:
    """A forward pass."""
    images = torch.randn(rows, 3, 224, 224)
    model = ch.Bundle(model).model if name == "clearhead" else model.eval()

    @torch.no_grad()
    def infer() -> None:
        model(images)

    return {f"inference, batch {rows}": infer}


def onnx_step(model: nn.Module, rows: int) -> dict[str, Step]:
    """Our model, exported and run by ONNX Runtime."""
    import io

    import onnxruntime

    images, file = torch.randn(rows, 3, 224, 224), io.BytesIO()
    program = torch.onnx.export(
        model.eval(), (images,), input_names=["images"], dynamo=True, verbose=False
    )
    program.save(file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file.getvalue(), options)
    return {f"inference, batch {rows}": lambda: session.run(None, {"images": images.numpy()})}


def timed(steps: dict[str, Step], rounds: int, repeats: int, cuda: bool) -> dict[str, float]:
    """Median seconds per step of each, in rounds in which all take their turn; one thread: of the processor."""
    clock = time.perf_counter if cuda or torch.get_num_threads() > 1 else time.process_time
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():  # compilation and warm-up
        for _ in range(3):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            if cuda:
                torch.cuda.synchronize()
            start = clock()
            for _ in range(repeats):
                step()
            if cuda:
                torch.cuda.synchronize()
            seconds[name].append((clock() - start) / repeats)
    return {name: statistics.median(times) for name, times in seconds.items()}


def compare(family: str, device: str, rows: int, rounds: int) -> list[dict[str, Any]]:
    """The images per second of each library, and ours as a multiple of the best other one."""
    cuda, works = device != "cpu", dict[str, dict[str, Step]]()
    models = peers(family, device)
    for name, model in models.items():
        for work, step in (
            gpu_steps(model, family, rows) if cuda else cpu_steps(name, model, rows)
        ).items():
            works.setdefault(work, {})[name] = step
    if not cuda and installed("onnxruntime") and installed("onnx"):
        fresh = ch.build(family, **MODELS[family])
        for work, step in onnx_step(fresh, rows).items():
            works.setdefault(work, {})["onnxruntime"] = step
    results = []
    for work, steps in works.items():
        speeds = {
            name: rows / s for name, s in timed(steps, rounds, 10 if cuda else 1, cuda).items()
        }
        best = max((speed for name, speed in speeds.items() if name != "clearhead"), default=None)
        result = {"model": TITLES[family], "work": work, "images per second": speeds}
        results.append(result | {"ratio to the best other": best and speeds["clearhead"] / best})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument(
        "--rows", type=int, nargs="*", help="images per batch; 256 on a GPU, 1 and 32 on the CPU"
    )
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    wanted = ("timm", "torchvision") if given.device == "cuda" else ("transformers", "onnxruntime")
    for name in wanted:
        if not installed(name):
            print(json.dumps({"left out": name, "because": "it is not installed"}))
    for family in given.models:
        for rows in given.rows or ([256] if given.device == "cuda" else [1, 32]):
            for result in compare(family, given.device, rows, given.rounds):
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
