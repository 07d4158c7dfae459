"""A model by its name on Hugging Face's hub, fetched by huggingface_hub into its own cache: load("org/name")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .fill import WeightsError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
SMALL = (".json", ".txt", ".model", ".spm", ".jinja")


def is_name(text: str) -> bool:
    """Whether a text could name a model there, and no folder here: "runs/a" is one here, where there is a runs."""
    return NAME.fullmatch(text) is not None and not Path(text).exists() and not Path(text.split("/")[0]).is_dir()


def fetch(name: str) -> Path:
    """The folder of a model, downloaded unless it was before; without a network, as it was downloaded then."""
    try:
        import huggingface_hub as hub
    except ImportError as cause:
        raise WeightsError(
            f"{name}: there is no such folder; a model of that name on the hub is fetched by huggingface_hub: "
            "pip install clearhead[hub]"
        ) from cause
    try:
        files = wanted(file.rfilename for file in hub.HfApi().model_info(name).siblings or ())
        return Path(hub.snapshot_download(name, allow_patterns=files))
    except Exception as cause:  # whatever a network, a server and a library may raise
        with suppress(Exception):
            return Path(hub.snapshot_download(name, local_files_only=True))
        said = " ".join(str(cause).split())[:300]
        raise WeightsError(f"{name}: there is no such folder, and the hub gave none ({said})") from cause


def wanted(files: Iterable[str]) -> list[str]:
    """Of a model's files those that we read: of the same numbers in two formats the safer one."""
    top = [file for file in files if "/" not in file]
    small = [file for file in top if file.endswith(SMALL)]
    safe = [file for file in top if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors", file)]
    return small + (safe or [file for file in top if re.fullmatch(r"pytorch_model(-\d+-of-\d+)?\.bin", file)])
