"""Models of Hugging Face's hub, by name: load("org/name") downloads them with huggingface_hub into its cache."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .fill import WeightsError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
SMALL = (".json", ".txt", ".model", ".spm", ".jinja")


def is_hub_name(text: str) -> bool:
    """Whether a text could name a model of the hub, and not a local folder: "runs/a" is local if runs/ exists."""
    if NAME.fullmatch(text) is None or text.endswith(".gguf"):
        return False
    return not Path(text).exists() and not Path(text.split("/")[0]).is_dir()


def fetch(name: str) -> Path:
    """Download a model of the hub, unless the cache has it; returns its folder. Without a network the cache is used."""
    try:
        import huggingface_hub as hub
    except ImportError as cause:
        raise WeightsError(
            f"{name}: there is no such folder; to download a model of that name from the hub, "
            "pip install clearhead[hub]"
        ) from cause
    try:
        files = needed_files(file.rfilename for file in hub.HfApi().model_info(name).siblings or ())
        return Path(hub.snapshot_download(name, allow_patterns=files))
    except Exception as cause:  # the network, the server and the library can raise anything
        with suppress(Exception):
            return Path(hub.snapshot_download(name, local_files_only=True))
        reason = " ".join(str(cause).split())[:300]
        raise WeightsError(f"{name}: there is no such folder, and the hub has no such model ({reason})") from cause


def needed_files(files: Iterable[str]) -> list[str]:
    """The files of a model that we read: its small files, and its weights, as safetensors if it has them."""
    top = [file for file in files if "/" not in file]
    small = [file for file in top if file.endswith(SMALL)]
    safe = [file for file in top if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors", file)]
    return small + (safe or [file for file in top if re.fullmatch(r"pytorch_model(-\d+-of-\d+)?\.bin", file)])
