"""The house keeps its order: rooms import only rooms above them, and the door is light."""

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "clearhead"
# From the first room to the last; a room may import itself and those before it.
ROOMS = [
    "errors", "lazy", "checks", "atomic_files", "counter_rng", "protobuf", "devices", "progress", "config", "draw",
    "tokens", "data", "layers", "models", "fast", "decode", "weights", "inputs", "look", "metrics", "tasks", "training",
    "report", "explore", "cli", "__main__",
]  # fmt: skip


def imports(path: Path) -> set[str]:
    """The rooms that a file of the house imports, wherever in the file it does."""
    found = set()
    package = ("clearhead", *path.relative_to(HOUSE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("clearhead.")}
    return found & set(ROOMS)


FILES = [path for path in sorted(HOUSE.rglob("*.py")) if path != HOUSE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(HOUSE)))
def test_rooms_import_only_rooms_above(path):
    room = path.relative_to(HOUSE).parts[0].removesuffix(".py")
    assert room in ROOMS, f"{room} is not a room of the house: {', '.join(ROOMS)}"
    below = {other for other in imports(path) if ROOMS.index(other) > ROOMS.index(room)}
    assert not below, f"{room} imports {', '.join(sorted(below))}, which stand below it"


def test_a_class_name_has_one_meaning():
    """`Config` is the options of the file that it stands in; Table and Tokens are public names of two folders each."""
    names: dict[str, list[str]] = {}
    for path in FILES:
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            names.setdefault(name, []).append(str(path.relative_to(HOUSE)))
    several = {name: paths for name, paths in names.items() if len(paths) > 1}
    assert several.keys() <= {"Config", "Table", "Tokens"}, several


def test_the_test_itself_sees_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "HOUSE", tmp_path)
    (tmp_path / "layers").mkdir()
    file = tmp_path / "layers" / "x.py"
    file.write_text("from ..look import watch\nimport clearhead.training\ndef f():\n    from .. import explore\n")
    assert imports(file) == {"look", "training", "explore"}


def run(code: str, env: dict[str, str] | None = None) -> str:
    line = [sys.executable, "-c", code]
    return subprocess.run(line, capture_output=True, text=True, check=True, env=env).stdout.strip()


def test_importing_clearhead_imports_no_torch():
    heavy = "'torch', 'numpy', 'matplotlib', 'transformers', 'triton'"
    assert run(f"import sys, clearhead; print([m for m in ({heavy}) if m in sys.modules])") == "[]"
    assert run("import sys, clearhead; dir(clearhead); print('torch' in sys.modules)") == "False"


def test_importing_clearhead_is_instant():
    """Under 0.1 s of the processor beyond starting Python, in the fastest of five: about a thousandth is needed."""
    code = "import time; s = time.process_time(); import clearhead; print(time.process_time() - s)"
    assert min(float(run(code)) for _ in range(5)) < 0.1


def test_public_names_are_there():
    import clearhead

    for name in clearhead.__all__:
        assert getattr(clearhead, name) is not None
    with pytest.raises(AttributeError, match=r"no attribute 'wacth'.*watch"):
        clearhead.wacth  # noqa: B018


@pytest.mark.parametrize(
    ("given", "policy"),
    [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"), ({"GOMP_SPINCOUNT": "9"}, None)],
    ids=["nothing set", "active", "a spin count"],
)
def test_idle_threads_sleep_unless_the_environment_says_otherwise(given, policy):
    others = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    code = "import clearhead, os; print(os.environ.get('OMP_WAIT_POLICY'))"
    assert run(code, others | given) == str(policy)


def test_the_first_screen_of_the_readme_shows_the_commands_that_set_everything_up():
    first = (ROOT / "README.md").read_text().splitlines()[:30]
    assert any(line.startswith("make explore") for line in first)
    assert any("`make test`" in line for line in first)


def test_the_tests_run_where_bf16_products_are_safe():
    """oneDNN reads its limit when torch starts, so the Makefile sets it before Python does."""
    assert "export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16" in (ROOT / "Makefile").read_text()
    started = time.perf_counter()
    code = "import torch; a = torch.randn(64, 64).bfloat16(); print((a @ a).dtype)"
    assert run(code) == "torch.bfloat16"
    assert time.perf_counter() - started < 60
