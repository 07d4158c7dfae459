"""The documentation is executed: every python block of docs/*.md, in order, in one namespace a file.

A comment after a statement says what the reader will see, and is checked:

    expression  # -> what it shows           repr() of its value, or what it prints
    statement   # raises ValueError: words    the error, whose message begins so
    statement   # warns Notice: words         the warning, whose message begins so

It may stand on a line of its own below the statement, and go on over lines that begin with "#   ". White
space does not count, and numbers are compared to one unit in their last shown digit, since another processor
may round otherwise. All other statements just have to run.

Each file runs in a Python of its own, as a reader's would: without the shape checks of the other tests, with
warnings as errors, in an empty folder.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"# (->|raises|warns) (.*)")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[+-]?\d+)?")


def blocks(page: Path) -> list[tuple[int, str]]:
    """The python blocks of a page, each with the number of the line before its first."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(1)), m.group(1)) for m in BLOCK.finditer(text)]


def said(lines: list[str], statement: ast.stmt) -> tuple[str, str] | None:
    """What the comments at and below a statement say of it: the word, and the words."""
    end = statement.end_lineno
    assert end is not None
    found = SAID.match(lines[end - 1].encode()[statement.end_col_offset :].decode().strip())
    if found is None and end < len(lines):
        found, end = SAID.match(lines[end]), end + 1
    if found is None:
        return None
    words = [found.group(2)]
    while end < len(lines) and lines[end].startswith("#   "):
        words.append(lines[end][1:])
        end += 1
    return found.group(1), " ".join(words)


def alike(shown: str, seen: str) -> bool:
    """The same text, its numbers equal to one unit in the last digit shown."""
    frame = [re.sub(r"\s+", "", NUMBER.sub("#", text)) for text in (shown, seen)]
    if frame[0] != frame[1]:
        return False
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(seen), strict=True):
        mantissa, _, exponent = a.partition("e")
        digits = len(mantissa.partition(".")[2])
        unit = 10.0 ** (int(exponent or 0) - digits) if digits or exponent else 0.0  # whole numbers are exact
        if abs(float(a) - float(b)) > 1.01 * unit:
            return False
    return True


def run(page: Path) -> None:
    """Execute a page, and stop at the first thing that is not as it says."""
    space: dict[str, Any] = {"__name__": "__docs__"}
    for first, block in blocks(page):
        tree, lines = ast.parse(block), block.splitlines()
        ast.increment_lineno(tree, first)
        for statement, again in zip(tree.body, ast.parse(block).body, strict=True):
            _one(statement, said(lines, again), space, page)


def _one(statement: ast.stmt, promise: tuple[str, str] | None, space: dict[str, Any], page: Path) -> None:
    where = f"{page.name}:{statement.lineno}"
    word, words = promise or ("", "")
    printed, value, problem = io.StringIO(), None, None
    with warnings.catch_warnings(record=word == "warns") as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always" if word == "warns" else "error")
        # torch.compile uses what torch deprecates.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.")
        try:
            if isinstance(statement, ast.Expr):
                code: Any = ast.Expression(statement.value)
                value = eval(compile(code, str(page), "eval", dont_inherit=True), space)
            else:
                exec(compile(ast.Module([statement], []), str(page), "exec", dont_inherit=True), space)
        except Exception as error:
            if word != "raises":
                raise
            problem = error
    if word == "->":
        seen = printed.getvalue() if value is None and printed.getvalue() else repr(value)
        assert alike(words, seen), f"{where} shows\n{seen}\nbut the page says\n{words}"
    elif word == "raises":
        assert problem is not None, f"{where} raised nothing; the page says {words}"
        seen = f"{type(problem).__name__}: {problem.args[0] if problem.args else ''}"
        assert _begins(seen, words), f"{where} raised\n{seen}\nbut the page says\n{words}"
    elif word == "warns":
        assert caught, f"{where} warned of nothing; the page says {words}"
        seen = [f"{w.category.__name__}: {w.message}" for w in caught]
        assert any(_begins(s, words) for s in seen), f"{where} warned\n{seen}\nbut the page says\n{words}"


def _begins(seen: str, words: str) -> bool:
    squeezed = re.sub(r"\s+", " ", words).strip().removesuffix("...").rstrip()
    return re.sub(r"\s+", " ", seen).startswith(squeezed)


def serve() -> None:
    """Run pages, each in a fork of its own; slow imports happen once. Reads lines of JSON: [page, folder, log file]."""
    import matplotlib.figure  # noqa: F401
    import numpy  # noqa: F401
    import torch  # noqa: F401

    for line in sys.stdin:
        page, folder, log = json.loads(line)
        child = os.fork()
        if not child:
            code = 1
            with open(log, "w") as stderr:
                os.dup2(stderr.fileno(), 2)
                os.chdir(folder)
                try:
                    run(Path(page))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
    sys.exit()


import pytest  # noqa: E402  (a reader has no pytest)


@pytest.fixture(scope="session")
def server():
    """A Python without pytest that runs pages."""
    path = os.pathsep.join([str(DOCS.parent / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, __file__], env={**os.environ, "PYTHONPATH": path}, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs_and_shows_what_it_says(page, server, tmp_path):
    log, folder = tmp_path / "log.txt", tmp_path / "reader"
    folder.mkdir()
    print(json.dumps([str(page), str(folder), str(log)]), file=server.stdin, flush=True)
    assert server.stdout.readline() == "0\n", log.read_text()[-3000:]


def test_there_are_pages_and_each_has_code():
    assert len(PAGES) >= 4
    assert all(blocks(page) for page in PAGES)


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [to for to in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in to]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    assert [to for to in links(page) if not (page.parent / to).exists()] == []


def test_every_picture_is_drawn_shown_and_small():
    drawn = {path.name for path in (DOCS / "pictures").glob("*.png")}
    tree = ast.parse((DOCS / "pictures.py").read_text(encoding="utf-8"))
    functions = {
        node.name.replace("_", "-") + ".png"
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(getattr(d, "id", "") == "picture" for d in node.decorator_list)
    }
    shown = {Path(to).name for page in PAGES for to in links(page) if to.endswith(".png")}
    assert drawn == functions == shown
    sizes = {path.name: path.stat().st_size for path in (DOCS / "pictures").glob("*.png")}
    assert {name: size for name, size in sizes.items() if size >= 120_000} == {}
    assert (DOCS / "pictures" / "explorer.webp").stat().st_size < 2_000_000  # the tour at the top of the README


@pytest.mark.parametrize(
    ("shown", "seen", "same"),
    [
        ("[1.94, 2.0]", "[1.9366, 2.0]", True),
        ("[1.92, 2.0]", "[1.9366, 2.0]", False),
        ("tensor([[1., 0.],  [0., 1.]])", "tensor([[1., 0.],\n        [0., 1.]])", True),
        ("(2, 3)", "(2, 4)", False),
        ("tensor([1., 0.])", "tensor([2., 0.])", False),
        ("'causal'", "'window'", False),
        ("[1, 2]", "[1, 2, 3]", False),
        ("3e-07", "3.2e-07", True),
        ("[ 4., -2.]", "[4., -2.]", True),
    ],
)
def test_what_counts_as_the_same_output(shown, seen, same):
    assert alike(shown, seen) is same


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("1 + 1  # -> 3", "shows"),
        ("int('x')  # raises TypeError: no", "raised"),
        ("x = 1  # raises ValueError: no", "raised nothing"),
        ("x = 1  # warns UserWarning: no", "warned of nothing"),
        ("print('a')\n# -> b", "shows"),
    ],
)
def test_a_page_that_says_what_is_not_so_is_caught(tmp_path, block, problem):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n```python\n{block}\n```\n")
    with pytest.raises(AssertionError, match=problem):
        run(page)


def test_a_page_may_show_values_prints_errors_and_warnings(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nimport warnings\nx = [1,\n     2]\nx  # -> [1, 2]\nprint(x)\n# -> [1,\n#     2]\n"
        "int('ü')  # raises ValueError: invalid literal\n"
        "warnings.warn('slow', stacklevel=1)  # warns UserWarning: slow\n```\n\n"
        "```python\nlen(x)  # -> 2\n```\n"
    )
    run(page)
