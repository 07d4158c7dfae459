"""Named sets of data: found where they lie, or fetched once from their public home."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .files import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The public home of a set of data."""

    files: tuple[str, ...]  # names it may have in a data folder; a download gets the first
    url: str  # where it is fetched from
    sha256: str  # of what is fetched


HOMES = {
    "shakespeare": Home(
        files=("shakespeare.txt", "shakespeare.txt.gz"),
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
}


def find(name: str, root: Path | None = None) -> Path:
    """The file of a named set: in `root`, in $CLEARHEAD_DATA, in the user's cache folder, or fetched into it."""
    if name not in HOMES:
        near = get_close_matches(name, HOMES) or sorted(HOMES)
        raise DataError(f"no set of data is named {name!r}: did you mean {' or '.join(near)}?")
    home, cache = HOMES[name], cache_folder()
    given = os.environ.get("CLEARHEAD_DATA")
    folders = [folder for folder in (root, Path(given) if given else None, cache) if folder is not None]
    for folder in folders:
        for file in home.files:
            if (folder / file).is_file():
                return folder / file
    return _fetch(name, home, cache)


def cache_folder() -> Path:
    """Where this system keeps what a user's programs can fetch again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "clearhead"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "clearhead" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clearhead"


def _fetch(name: str, home: Home, folder: Path) -> Path:
    """Fetch into a temporary file, check it, and only then give it its name."""
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    target = folder / home.files[0]
    with FileLock(f"{target}.lock"):  # of several workers, one fetches
        if target.is_file():
            return target
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f"{target.name}.", suffix=".part")
        os.close(handle)
        try:
            found = _download(name, home.url, Path(temporary))
            if found != home.sha256:
                raise DataError(
                    f"what {home.url} gave for {name} has the sha256 {found}, expected {home.sha256}: it was thrown "
                    f"away, and nothing else was touched. If you trust a copy of yours, put it at {target}"
                )
            os.replace(temporary, target)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ConnectionError(
                f"cannot fetch {name} from {home.url} ({reason}); a copy may be put at {target}, "
                "or into a folder named by --data or $CLEARHEAD_DATA"
            ) from error
        finally:
            Path(temporary).unlink(missing_ok=True)
    return target


def _download(name: str, url: str, target: Path) -> str:
    """Write what is at an address to a file, and give its sha256."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    digest = hashlib.sha256()
    with (
        urllib.request.urlopen(url, timeout=30) as source,
        target.open("wb") as sink,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        total = int(source.headers.get("Content-Length") or 0) or None
        bar = progress.add_task(f"fetching {name}", total=total)
        while chunk := source.read(1 << 18):
            sink.write(chunk)
            digest.update(chunk)
            progress.advance(bar, len(chunk))
    return digest.hexdigest()
