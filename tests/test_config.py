"""Configs: what is written is read back, and every mistake is reported with its file and line."""

import copy
import dataclasses
import math
import pickle
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead import config
from clearhead.config import ConfigError, Table, dump, load, override, read, write


@dataclass(frozen=True, kw_only=True, slots=True)
class Optim:
    lr: float  # peak step size
    steps: int = 100
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float | None = None
    fused: bool = False

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError(f"lr={self.lr}: expected a positive number")
        if self.steps == 13:
            raise ValueError("thirteen is not allowed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    width: int = 16
    positions: Literal["none", "rotary", "alibi"] = "none"
    sizes: tuple[int, ...] = ()
    length: int | tuple[int, int] = 8
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    name: str
    optim: Optim
    model: Model = Model()
    teacher: Model | None = None
    data: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Optim] = field(default_factory=dict)
    stages: tuple[Model, ...] = ()
    note: str | None = None


GOOD = """\
# A comment, and a text whose lines look like keys.
name = '''
lr = "no"
[optim]
'''

[optim]
lr = 1
betas = [
  0.8,
  0.9,
]

[model]
width = 3
positions = "rotary"

[data]
name = "shakespeare"
context = 64
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes a file in the current folder, so that messages have short names."""
    monkeypatch.chdir(tmp_path)

    def make(text, name="run.toml"):
        Path(name).write_text(textwrap.dedent(text))
        return name

    return make


def message(table, kind=Recipe, **more):
    with pytest.raises(ConfigError) as caught:
        read(kind, table, **more)
    return str(caught.value)


def changed(old, new, text=GOOD):
    assert old in text
    return text.replace(old, new)


# Reading


def test_a_file_becomes_a_dataclass(file):
    recipe = read(Recipe, load(file(GOOD)))
    assert recipe.optim == Optim(lr=1.0, betas=(0.8, 0.9))
    assert type(recipe.optim.lr) is float
    assert recipe.model == Model(width=3, positions="rotary")
    assert recipe.data == {"name": "shakespeare", "context": 64}
    assert recipe.teacher is None


def test_json_and_toml_give_the_same_config(file):
    write(read(Recipe, load(file(GOOD))), "run.json")
    assert read(Recipe, load("run.json")) == read(Recipe, load("run.toml"))
    assert read(Model, {"length": [1, 2]}).length == (1, 2)


def test_null_in_json_is_none(file):
    assert read(Optim, load(file('{"lr": 1.0, "clip": null}', "a.json"))).clip is None


def test_byte_order_marks_and_windows_line_ends_are_accepted(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert read(Recipe, load(path)).optim.lr == 1.0
    assert load(path).line("data.context") == 20


def test_a_section_can_be_read_alone_and_keeps_its_lines(file):
    table = load(file(GOOD))
    assert read(Model, table["model"]) == read(Recipe, table).model
    rest = read(Recipe, table).data.without("name")  # still a Table
    assert rest == {"context": 64}
    assert message(rest, Optim) == "run.toml:20: unknown key data.context; the known keys are " + (
        "lr, steps, betas, clip, fused"
    )


def test_a_table_can_be_copied_and_pickled(file):
    table = load(file(GOOD))
    for other in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert other == table
        assert (other.path, other["data"].line("context")) == ("run.toml", 20)
    assert dataclasses.asdict(read(Recipe, table))["data"] == {"name": "shakespeare", "context": 64}


def test_a_toml_table_has_the_line_of_every_key(file):
    table = load(file(GOOD))
    names = ["name", "optim", "optim.lr", "optim.betas", "model", "model.width", "data.name"]
    assert [table.line(name) for name in names] == [2, 7, 8, 9, 14, 15, 19]
    assert table.line("optim.steps") is None
    assert table["optim"].line("lr") == 8
    assert Table({"a": 1}).line("a") is None


def test_a_json_table_has_the_line_of_every_key(file):
    text = '{\n "name": "a: {\\"b\\": [",\n "optim": {\n  "lr":\n 1, "steps": 3},\n "stages": [{"width": 1}],\n "z": 1}'
    table = load(file(text, "run.json"))
    names = ["name", "optim", "optim.lr", "optim.steps", "stages", "z"]
    assert [table.line(name) for name in names] == [2, 3, 4, 5, 6, 7]


def test_quoted_and_dotted_keys_have_lines(file):
    table = load(file('a.b = 1\n"c.d" = {e = 1, f = {g = 2}}\n[x.y]\nz = 1\n[[list]]\n[other]\nw = 0\n'))
    assert table.line("a.b") == 1
    assert table.origin.lines["c.d", "f", "g"] == 2
    assert [table.line(n) for n in ("x", "x.y", "x.y.z", "list", "other.w")] == [3, 3, 4, 5, 7]


def test_the_tables_of_a_list_have_lines_of_their_own(file):
    table = load(file(changed("[model]\n", "[[stages]]\n[[stages]]\nlength = 1\n[[stages]]\n[model]\n")))
    assert [table.line(f"stages.{i}") for i in range(4)] == [14, 15, 17, None]
    assert table.line("stages.1.length") == 16
    assert [stage.line() for stage in table["stages"]] == [14, 15, 17]


def test_importing_config_imports_neither_torch_nor_numpy():
    code = "import sys, clearhead.config; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


# Mistakes and their places


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("lr = 1\n", "lr = 'fast'\n", "run.toml:8: optim.lr = 'fast': expected a number, got text"),
        ("lr = 1\n", "lr = '1e-3'\n", "run.toml:8: optim.lr = '1e-3': expected a number, got text"),
        ("lr = 1\n", "lr = true\n", "run.toml:8: optim.lr = True: expected a number, got true"),
        ("lr = 1\n", "lr = []\n", "run.toml:8: optim.lr = []: expected a number, got a list"),
        ("lr = 1\n", "lr = {}\n", "run.toml:8: optim.lr = {}: expected a number, got a table"),
        (
            "lr = 1\n",
            "lr = 2024-01-01\n",
            "run.toml:8: optim.lr = datetime.date(2024, 1, 1): expected a number, got a date",
        ),
        ("width = 3", "width = true", "run.toml:15: model.width = True: expected a whole number, got true"),
        ("width = 3", "width = 3.0", "run.toml:15: model.width = 3.0: expected a whole number, got 3.0"),
        ("  0.9,\n", "", "run.toml:9: optim.betas = [0.8]: expected a list of 2 (a number, a number), got 1"),
        ("  0.9,\n", "'x'", "run.toml:9: optim.betas.1 = 'x': expected a number, got text"),
        (
            "width = 3",
            "sizes = 3",
            "run.toml:15: model.sizes = 3: expected a list (each a whole number), got a whole number",
        ),
        ("width = 3", "labels = [1.5]", "run.toml:15: model.labels.0 = 1.5: expected text, got 1.5"),
        (
            "width = 3",
            "length = 'x'",
            "run.toml:15: model.length = 'x': expected a whole number or a list of 2 (a whole number, a whole number), "
            "got text",
        ),
        (
            "width = 3",
            "length = [1, 'x']",
            "run.toml:15: model.length.1 = 'x': expected a whole number, got text",
        ),
        (
            '"rotary"',
            '"Rotry"',
            "run.toml:16: model.positions = 'Rotry': expected one of 'none', 'rotary', 'alibi'; the nearest is rotary",
        ),
        (
            '"rotary"',
            "1",
            "run.toml:16: model.positions = 1: expected one of 'none', 'rotary', 'alibi', got a whole number",
        ),
        ("[data]", "[dta]", "run.toml:18: unknown key dta; the nearest is data"),
        ("width = 3", "widht = 3", "run.toml:15: unknown key model.widht; the nearest is width"),
        ("width = 3", "WIDTH = 3", "run.toml:15: unknown key model.WIDTH; the nearest is width"),
        (
            "width = 3",
            "xyz = 3",
            "run.toml:15: unknown key model.xyz; the known keys are width, positions, sizes, length, labels",
        ),
        ("lr = 1\n", "", "run.toml:7: missing optim.lr (a number)"),
        ("lr = 1\n", "lr = -1\n", "run.toml:8: optim: lr=-1.0: expected a positive number"),
        ("lr = 1\n", "lr = 1\nsteps = 13\n", "run.toml:7: optim: thirteen is not allowed"),
        ("[model]", "[teacher]", None),
        (
            "[model]\nwidth = 3",
            "[teacher]\nwidth = '3'",
            "run.toml:15: teacher.width = '3': expected a whole number, got text",
        ),
        (
            "[model]\nwidth = 3",
            "[[stages]]\nwidth = '3'",
            "run.toml:15: stages.0.width = '3': expected a whole number, got text",
        ),
        ("[model]\n", "[groups.a]\nlr = 'x'\n[model]\n", "run.toml:15: groups.a.lr = 'x': expected a number, got text"),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_line(file, old, new, expected):
    table = load(file(changed(old, new)))
    if expected is None:
        assert read(Recipe, table).teacher == Model(width=3, positions="rotary")
    else:
        assert message(table) == expected


def test_all_missing_keys_are_reported_at_once(file):
    assert message(load(file("\n"))) == "run.toml:1: missing name (text), optim (a table)"


def test_an_unknown_key_is_found_in_another_section(file):
    assert message(load(file("name = 'x'\nbetas = [1, 2]\n"))) == "run.toml:2: unknown key betas; there is optim.betas"


def test_a_mistake_in_a_json_file_is_reported_with_its_line(file):
    text = '{\n  "name": "x",\n  "optim": {\n    "lr": "fast"\n  }\n}\n'
    assert message(load(file(text, "a.json"))) == "a.json:4: optim.lr = 'fast': expected a number, got text"


def test_a_mistake_in_a_plain_mapping_is_reported_without_a_file():
    assert message({"lr": "x"}, Optim) == "lr = 'x': expected a number, got text"
    assert message({"lr": "x"}, Optim, where="run.optim") == "run.optim.lr = 'x': expected a number, got text"
    assert message({"lr": -1}, Optim) == "lr=-1.0: expected a positive number"


def test_a_long_value_is_shortened_in_the_message():
    assert len(message({"lr": "x" * 10_000}, Optim)) < 200


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.toml", "x = 1\ny = = 2\n", r"a\.toml:2: Invalid value \(at line 2, column 5\)"),
        ("a.toml", "x = 1\ny = [1,\n", r"a\.toml:3: "),
        ("a.toml", "x = 1\nx = 2\n", r"a\.toml:2: Cannot overwrite a value"),
        ("a.json", '{\n"x": 1,\n}', r"a\.json:[23]: .* line [23] column \d+"),
        ("a.json", '{"x": 1, "x": 2}', r"a\.json: the key 'x' is given twice"),
        ("a.json", '{"x": NaN}', r"a\.json: JSON has no NaN"),
        ("a.json", "[1]", r"a\.json: expected a table \{\.\.\.\}, got a list"),
        ("a.json", "[" * 100_000, r"a\.json: "),
        ("a.yaml", "", r"a\.yaml: expected a name that ends in \.toml or \.json"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_refused(file, name, text, expected):
    with pytest.raises(ConfigError, match=f"^{expected}"):
        load(file(text, name))


def test_a_file_that_cannot_be_read_is_refused(file, tmp_path):
    file("", "reverse.toml")
    with pytest.raises(ConfigError, match=r"revers\.toml: there is no such file; the nearest is reverse\.toml"):
        load("revers.toml")
    with pytest.raises(ConfigError, match="no such file"):
        load("nowhere/a.toml")
    Path("bad.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match=r"^bad\.toml: cannot be read: .*utf-8"):
        load("bad.toml")
    Path("folder.toml").mkdir()
    with pytest.raises(ConfigError, match=r"^folder\.toml: cannot be read"):
        load("folder.toml")


# Overrides


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a.b=1e-3", 1e-3),
        ("a.b=3", 3),
        ("a.b = 3", 3),
        ("a.b=true", True),
        ("a.b=rotary", "rotary"),
        ("a.b=x y", "x y"),
        ("a.b=x=y", "x=y"),
        ('a.b="x y"', "x y"),
        ("a.b='3'", "3"),
        ("a.b=[1,2]", [1, 2]),
        ("a.b={c = 1}", {"c": 1}),
        ("a.b=", ""),
        ("a.b=runs/a.toml", "runs/a.toml"),
        ("a.b=True", "True"),
        ("a.b=1\nc=2", "1\nc=2"),
        ("a.b=inf", math.inf),
    ],
)
def test_an_override_is_read_as_toml_or_else_as_text(word, value):
    table = {"a": {"b": 0, "other": [1]}, "c": 1}
    out = override(table, word)
    assert out == {"a": {"b": value, "other": [1]}, "c": 1}
    assert type(out["a"]["b"]) is type(value) or isinstance(value, dict)
    assert table == {"a": {"b": 0, "other": [1]}, "c": 1}


def test_overrides_copy_and_the_last_one_wins(file):
    table = load(file(GOOD))
    out = override(table, "model.width=5", "model.width=7", "teacher.width=2", "data.context=3")
    assert read(Recipe, out).model.width == 7
    assert read(Recipe, out).teacher == Model(width=2)
    assert read(Recipe, table).model.width == 3
    assert override(out, "model.positions=alibi")["model"] == {"width": 7, "positions": "alibi"}
    out["data"]["context"] = 99
    assert table["data"]["context"] == 64


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("optim.lr", "'optim.lr': expected name=value, like optim.lr=1e-3"),
        ("=3", "'=3': expected name=value, like optim.lr=1e-3"),
        ("a..b=3", "'a..b=3': expected name=value, like optim.lr=1e-3"),
        ("", "'': expected name=value, like optim.lr=1e-3"),
        ("name.x=3", "name.x=3: name = 'lr = \"no\"\\n[optim]\\n' is not a table"),
        ("optim.lr.x.y=3", "optim.lr.x.y=3: optim.lr = 1 is not a table"),
    ],
)
def test_an_override_without_a_name_or_for_a_value_that_is_no_table_is_refused(file, word, expected):
    with pytest.raises(ConfigError) as caught:
        override(load(file(GOOD)), word)
    assert str(caught.value) == "on the command line: " + expected


def test_an_override_with_broken_toml_is_refused():
    with pytest.raises(ConfigError, match=r"^on the command line: a=\[1,2: "):
        override({}, "a=[1,2")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["optim.lr=fast"], "on the command line: optim.lr = 'fast': expected a number, got text"),
        (["optim.rl=1"], "on the command line: unknown key optim.rl; the nearest is lr"),
        (["lr=1"], "on the command line: unknown key lr; there is optim.lr"),
        (["optim.lr=-2"], "on the command line: optim: lr=-2.0: expected a positive number"),
        (["optim=3"], "on the command line: optim = 3: expected a table, got a whole number"),
        (["optim={lr = 'x'}"], "on the command line: optim.lr = 'x': expected a number, got text"),
        (["groups.a.steps=3"], "on the command line: missing groups.a.lr (a number)"),
        (
            ["model.width=x", "optim.steps=3"],
            "on the command line: model.width = 'x': expected a whole number, got text",
        ),
    ],
)
def test_a_mistake_in_an_override_is_reported_as_on_the_command_line(file, words, expected):
    assert message(override(load(file(GOOD)), *words)) == expected


def test_a_mistake_in_the_file_is_still_there_after_an_override(file):
    table = override(load(file(changed("width = 3", "width = 'x'"))), "optim.lr=2")
    assert message(table).startswith("run.toml:15: model.width = 'x'")


# Writing

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["'", '"', '"""', "'''\n", "\\", "\r\n", "\u2028", "\x00\x7f", "= [x]", "# no", "日本\n語"]
)
floats = st.floats(allow_nan=False)
plain = st.recursive(
    st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
optims = st.builds(
    Optim,
    lr=st.floats(min_value=0, allow_nan=False),
    steps=st.integers(min_value=14),
    betas=st.tuples(floats, floats),
    clip=st.none() | floats,
    fused=st.booleans(),
)
models = st.builds(
    Model,
    width=st.integers(),
    positions=st.sampled_from(["none", "rotary", "alibi"]),
    sizes=st.lists(st.integers()).map(tuple),
    length=st.integers() | st.tuples(st.integers(), st.integers()),
    labels=st.lists(texts),
)
recipes = st.builds(
    Recipe,
    name=texts,
    optim=optims,
    model=models,
    teacher=st.none() | models,
    data=st.dictionaries(texts, plain, max_size=4),
    groups=st.dictionaries(texts, optims, max_size=2),
    stages=st.lists(models, max_size=2).map(tuple),
    note=st.none() | texts,
)


def finite(x):
    items = x.values() if isinstance(x, Mapping) else x if isinstance(x, list) else ()
    return all(map(finite, items)) if items else not isinstance(x, float) or math.isfinite(x)


@given(recipes)
def test_a_written_config_is_read_back(recipe):
    with tempfile.TemporaryDirectory() as folder:
        for name in ["run.toml", "run.json"] if finite(dump(recipe)) else ["run.toml"]:
            path = Path(folder, name)
            write(recipe, path)
            again = read(Recipe, load(path))
            assert again == recipe
            assert [p.name for p in Path(folder).iterdir() if p.name.startswith(".")] == []


@given(recipes)
def test_every_written_key_has_a_line(recipe):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.toml")
        write(recipe, path)
        table, rows = load(path), path.read_bytes().decode().split("\n")

        def check(inner):
            for name, value in inner.items():
                line = table.origin.lines[(*inner.key, name)]
                assert rows[line - 1].strip()
                if isinstance(value, Table):
                    check(value)
                elif isinstance(value, int) and inner.key in ((), ("optim",), ("model",)):
                    assert rows[line - 1] == f"{name} = {str(value).lower()}"

        check(table)


@given(st.floats())
def test_floats_are_written_exactly(x):
    with tempfile.TemporaryDirectory() as folder:
        write({"x": x}, Path(folder, "a.toml"))
        assert repr(load(Path(folder, "a.toml"))["x"]) == repr(x)


def test_dump_omits_fields_that_are_none():
    assert dump(Optim(lr=1.0)) == {"lr": 1.0, "steps": 100, "betas": [0.9, 0.99], "fused": False}


@dataclass(frozen=True, kw_only=True)
class Limited:
    limit: int | None = 5
    names: Sequence[str] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    anything: Any = 0
    bare: list = field(default_factory=list)


@pytest.mark.parametrize("text", ['{"a": 1,\n"b": {"c": ["\\ud800"]}}', '{"a": 1,\n"\\uDC00x": 1}'])
def test_half_of_a_surrogate_pair_in_json_is_refused_with_its_line(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json:2: \\ud[8c]00 is half of a surrogate pair"):
        load(path)
    path.write_text('{"a": "\\ud83d\\ude00"}')
    assert load(path) == {"a": "\U0001f600"}


def test_bytes_of_the_command_line_that_are_not_utf8_are_refused():
    with pytest.raises(ConfigError, match=r"on the command line: positions = '\\udcff': expected text of whole"):
        read(Model, override({}, "positions=\udcff"))


def test_none_is_refused_where_the_default_is_another_value():
    assert dump(Limited()) == {"limit": 5, "names": [], "shares": {}, "anything": 0, "bare": []}
    with pytest.raises(ConfigError, match=r"limit = None cannot be written: left out, it would not be None"):
        dump(Limited(limit=None))


def test_fields_with_abstract_container_types_are_read():
    config = read(Limited, {"names": ["a"], "shares": {"x": 1}, "anything": {"y": [1]}, "bare": [1, "x"]})
    assert config == Limited(names=("a",), shares={"x": 1.0}, anything={"y": [1]}, bare=[1, "x"])


@pytest.mark.parametrize("config", [3, Optim, None, "text"])
def test_dump_refuses_other_things_than_configs(config):
    with pytest.raises(ConfigError, match="expected a dataclass's instance or a mapping"):
        dump(config)


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ({"a": {"b": {1, 2}}}, "x.toml", r"a\.b = \{1, 2\} cannot be written: it is not plain data"),
        ({"a": {1: 2}}, "x.toml", r"a = \{1: 2\} cannot be written"),
        ({"a": None}, "x.toml", r"x\.toml: cannot be written as TOML"),
        ({"a": math.inf}, "x.json", r"x\.json: cannot be written as JSON"),
        ({"a": "\ud800"}, "x.json", r"x\.json: cannot be written as JSON"),
        ({}, "x.txt", r"x\.txt: expected a name that ends in"),
    ],
)
def test_values_that_cannot_be_written_leave_the_old_file(tmp_path, values, name, expected):
    (tmp_path / name).write_text("old")
    with pytest.raises(ConfigError, match=expected):
        write(values, tmp_path / name)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, "old")]


def test_recipes_that_ship_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = config.shipped_recipes()
    assert {"reverse", "en-de", "shakespeare"} <= shipped.keys()
    for name in ("reverse", "reverse.toml", "configs/reverse.toml"):
        assert config.find_recipe(name) == shipped["reverse"]
    assert config.find_recipe("elsewhere/reverse.toml") == Path("elsewhere/reverse.toml")
    (tmp_path / "reverse").mkdir()
    assert config.find_recipe("reverse") == Path("reverse")  # what is there comes first
