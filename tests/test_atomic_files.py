"""Atomic files: the old content or the new one, never a part; errors name the file and not its temporary name."""

import errno
import os
from pathlib import Path

import pytest

from clearhead.atomic_files import atomic_write, new_folder, replacing
from clearhead.errors import InputError

FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device without space")


def temporary_name(path: Path) -> Path:
    with replacing(path) as temporary:
        temporary.touch()
    path.unlink()
    return temporary


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.bin"
    atomic_write(path, b"old")
    atomic_write(path, b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a.bin", b"new")]


def test_an_error_in_the_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.bin"
    atomic_write(path, b"old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a.bin", b"old")]


@FULL
def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    path = tmp_path / "a.bin"
    temporary_name(path).symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number and the name are checked below
        atomic_write(path, b"x" * 100_000)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert str(caught.value).endswith(f": '{path}'")
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_reported_with_the_name_of_the_file(tmp_path):
    path = tmp_path / "nowhere" / "a.bin"
    with pytest.raises(FileNotFoundError) as caught:
        atomic_write(path, b"x")
    assert caught.value.filename == str(path)


def test_a_folder_in_the_way_is_reported_without_the_temporary_name(tmp_path):
    path = tmp_path / "a.bin"
    path.mkdir()
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its class depends on the system
        atomic_write(path, b"x")
    assert caught.value.filename == str(path)
    assert "tmp." not in str(caught.value)


def test_an_error_about_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "a.bin"):
        (tmp_path / "other.bin").read_bytes()
    assert os.fspath(caught.value.filename) == str(tmp_path / "other.bin")


def test_a_new_folder_appears_when_it_is_complete(tmp_path):
    with new_folder(tmp_path / "a" / "b") as temporary:
        (temporary / "x").write_text("new")
        assert not (tmp_path / "a" / "b").exists()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["x"]
    with pytest.raises(InputError, match="b is not empty"), new_folder(tmp_path / "a" / "b"):
        pass
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "c"):
        1 / 0  # noqa: B018
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_a_folder_that_is_filled_meanwhile_is_kept(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "a"):
        (tmp_path / "a" / "x").write_text("other")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "x"]
