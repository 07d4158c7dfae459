"""The wheel: built, installed far from the repository, and used from an empty folder, as whoever installs it does."""

import ast
import json
import os
import re
import site
import subprocess
import sys
import tomllib
import urllib.request
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import clearhead

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "clearhead"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def run(*words, **options):
    found = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, **options)
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built offline, by the backend that the environment of the tests has."""
    out = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, ROOT)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def home(wheel, tmp_path_factory):
    """An environment with the wheel; all else is that of the tests', less its link to the repository."""
    folder = tmp_path_factory.mktemp("home") / "env"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run(*PIP, "--python", python, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "others.pth").write_text("\n".join(site.getsitepackages()))  # as a path: .pth files there are not read
    return folder / "bin"


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty folder to be in, and to leave empty."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_wheel_holds_the_house_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {path for path in HOUSE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(HOUSE.parent).as_posix() for path in files} <= names
    for shipped in clearhead.weights.shipped():
        assert {
            f"clearhead/zoo/{shipped}/{name}" for name in ("card.toml", "config.json", "model.safetensors")
        } <= names
    assert "clearhead/explore/page/index.html" in names
    info = f"clearhead-{clearhead.__version__}.dist-info"
    assert {f"clearhead/configs/{path.name}" for path in (ROOT / "configs").glob("*.toml")} <= names
    assert {"clearhead/py.typed", f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"} <= names
    assert {name.split("/")[0] for name in names} == {"clearhead", info}
    assert wheel.stat().st_size < 50_000_000


def test_it_works_far_from_the_repository(home, empty):
    code = "import clearhead, sys; print(clearhead.__file__, clearhead.__version__, *sys.path)"
    file, version, *path = run(home / "python", "-c", code).split()
    assert Path(file).is_relative_to(home.parent)
    assert version == clearhead.__version__
    assert not [place for place in path if Path(place).is_relative_to(HOUSE.parent)]
    assert run(home / "clearhead", "--version") == version
    assert json.loads(run(home / "clearhead", "train", "reverse", "--recipe", "--json"))["data"]["name"] == "reverse"
    assert run(home / "clearhead", "translate", "en-de", "A dog runs.", "--device", "cpu") == "Ein Hund rennt."


def test_its_explorer_serves_page_and_models(home, empty):
    line = [str(home / "clearhead"), "explore", "--port", "0", "--no-browser", "--device", "cpu"]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address), server.communicate(timeout=10)[1]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def fetch(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            asked = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
            with opener.open(asked, timeout=60) as answer:
                return answer.read().decode()

        page = fetch("")
        assert "<title>clearhead</title>" in page
        wanted = re.findall(r'(?:href|src)="/(page/[^"]+)"', page)
        seen = set()
        while wanted:  # the page's files, and the modules that they import
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            text = fetch(name)
            wanted += [os.path.normpath(f"{name}/../{to}") for to in re.findall(r'from "(\.[^"]+)"', text)]
        assert {"styles/frame.css", "app.js", "views/translate.js"} <= {name.split("/", 2)[2] for name in seen}
        assert {one["id"] for one in json.loads(fetch("api/models"))} == clearhead.weights.shipped().keys()
        told = fetch("api/translate", {"model": "en-de", "text": "A dog runs.", "beams": 1}).splitlines()
        assert "Ein Hund rennt." in json.dumps(json.loads(told[-1]))
    finally:
        server.terminate()
        server.communicate(timeout=20)


def test_what_is_imported_is_declared():
    """By the package's dependencies, by an extra, or by fastapi and torch, which bring what is used beside them."""
    listed = [
        *PROJECT["dependencies"],
        *(name for extra in PROJECT["optional-dependencies"].values() for name in extra),
    ]
    declared = {re.split(r"[\[<>=]", name)[0] for name in listed} | {"pydantic", "starlette", "anyio", "triton"}
    at_home = packages_distributions()
    missing = set()
    for path in HOUSE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            for top in {module.split(".")[0] for module in modules} - sys.stdlib_module_names - {"clearhead"}:
                names = {name.lower().replace("_", "-") for name in at_home.get(top, [top])}
                if not names & {name.lower().replace("_", "-") for name in declared}:
                    missing.add(top)
    assert missing == set()
