"""What the source says about a name: its docstring in sections, its signature, the comments beside its fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import sys
import textwrap
import tokenize
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from torch import nn

SECTIONS = {"Args": "args", "Attributes": "args", "Returns": "returns", "Yields": "returns", "Raises": "raises",
            "Examples": "examples"}  # fmt: skip
HEADER = re.compile(rf"({'|'.join(SECTIONS)}):")
# for a linter
DIRECTIVE = re.compile(
    r"#\s*(?:noqa\b|type: ?ignore|(?:fmt|isort|mypy|pragma|pylint|pyright|ruff):).*"
)
ENTRY = re.compile(r"\*{0,2}(\w[\w.]*)(?: \([^)]*\))?: ?(.*)")  # name: text, or name (type): text


@dataclass
class Doc:
    """A Google-style docstring, in its sections."""

    summary: str = ""
    text: str = ""  # Markdown
    args: dict[str, str] = field(default_factory=dict)  # attributes of a class, too
    returns: str = ""
    raises: dict[str, str] = field(default_factory=dict)
    examples: str = ""


@dataclass
class Parameter:
    """A parameter of a function, a field of a dataclass, or an annotated attribute of a class."""

    name: str  # with its stars
    type: str = ""
    default: str | None = None  # as source code; None: it has none
    comment: str = ""  # beside it

    def __str__(self) -> str:
        return (
            self.name
            + (f": {self.type}" if self.type else "")
            + ("" if self.default is None else self._assigned)
        )

    @property
    def _assigned(self) -> str:
        return f" = {self.default}" if self.type else f"={self.default}"

    @property
    def untyped(self) -> str:
        return str(dataclasses.replace(self, type=""))


def parse(docstring: str) -> Doc:
    """Split a docstring, without its indentation, into its sections."""
    doc, section, lines = Doc(), "text", {name: [""] for name in ("text", *SECTIONS.values())}
    for line in docstring.splitlines():
        if header := HEADER.fullmatch(line):
            section = SECTIONS[header[1]]
        else:
            lines[section].append(line)
    blocks = {name: textwrap.dedent("\n".join(block)).strip("\n") for name, block in lines.items()}
    summary, _, text = blocks["text"].partition("\n\n")
    doc.summary, doc.text = " ".join(summary.split()), text.strip("\n")
    doc.args, doc.raises = _entries(blocks["args"]), _entries(blocks["raises"])
    doc.returns, doc.examples = blocks["returns"], blocks["examples"]
    return doc


def _entries(block: str) -> dict[str, str]:
    """The entries of an Args or Raises section; an indented line continues the entry above it."""
    entries: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if entry := ENTRY.match(line):
            name, entries[entry[1]] = entry[1], entry[2]
        elif name:
            entries[name] += f"\n{line.strip()}"
    return entries


# Signatures


def function_of(member: Any) -> Any:
    """The plain function in a method, property or decorator."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, cached_property):
        member = member.func
    return inspect.unwrap(getattr(member, "__func__", member))


def parameters(thing: Any) -> tuple[list[Parameter], str]:
    """The parameters of a function or of a class's constructor, without self, and what it returns, as source code."""
    if isinstance(thing, type):
        if issubclass(thing, BaseException) or thing.__init__ is nn.Module.__init__:
            return [], ""
        signature = inspect.signature(thing)
    else:
        signature = inspect.signature(function_of(thing))
    fields = (
        {one.name: _default(one) for one in dataclasses.fields(thing)}
        if dataclasses.is_dataclass(thing)
        else {}
    )
    result, kinds = [], inspect.Parameter
    for one in signature.parameters.values():
        if one.kind is kinds.KEYWORD_ONLY and not any(p.name.startswith("*") for p in result):
            result.append(Parameter("*"))
        stars = (
            "*"
            if one.kind is kinds.VAR_POSITIONAL
            else "**"
            if one.kind is kinds.VAR_KEYWORD
            else ""
        )
        default = None if one.default is one.empty else fields.get(one.name) or value(one.default)
        result.append(Parameter(stars + one.name, annotation(one.annotation), default))
    if not isinstance(thing, type | staticmethod) and result and result[0].name in ("self", "cls"):
        del result[0]
    return result, annotation(signature.return_annotation)


def annotation(hint: Any) -> str:
    """A type hint as source code."""
    if hint is inspect.Parameter.empty:
        return ""
    return double_quotes(hint if isinstance(hint, str) else inspect.formatannotation(hint))


def value(thing: Any) -> str:
    """A default value as source code; a dataclass without its own defaults."""
    if callable(thing) and hasattr(thing, "__name__"):
        return str(thing.__name__)
    return (
        f"{type(thing).__name__}()"
        if dataclasses.is_dataclass(thing)
        else double_quotes(repr(thing))
    )


def double_quotes(code: str) -> str:
    return code if '"' in code else code.replace("'", '"')


def choices(hint: str, module: str) -> list[str]:
    """The words of the Literals that a type hint refers to by name, so that they can be listed beside it."""
    known = vars(sys.modules[module])
    hints = [known.get(name) for name in dict.fromkeys(re.findall(r"[A-Z]\w*", hint))]
    return [
        str(word)
        for one in hints
        if typing.get_origin(one) is Literal
        for word in typing.get_args(one)
    ]


# Comments


def attributes(kind: type) -> list[Parameter]:
    """The fields of a dataclass in their order; for another class the attributes that a comment documents.

    An attribute that a class sets anew keeps the comment, and without an annotation also the type, of its base class.
    """
    written: dict[str, Parameter] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("clearhead"):
            for one in _set_in_body(base):
                inherited = written.get(one.name, Parameter(one.name))
                if one.type or one.name in written:
                    comment, hint = one.comment or inherited.comment, one.type or inherited.type
                    written[one.name] = dataclasses.replace(one, comment=comment, type=hint)
    if not dataclasses.is_dataclass(kind):
        return [one for one in written.values() if one.comment]
    fields = [one for one in dataclasses.fields(kind) if not one.name.startswith("_")]
    return [dataclasses.replace(written[one.name], default=_default(one)) for one in fields]


def _set_in_body(kind: type) -> Iterator[Parameter]:
    """The public names that a class body annotates, sets or defines, each with the comments on its lines or above."""
    source = textwrap.dedent(inspect.getsource(kind))
    (body,) = ast.parse(source).body
    comments = _comments(source)
    for node in typing.cast(ast.ClassDef, body).body:
        # a property may replace an attribute, and then the value is not known
        if isinstance(node, ast.FunctionDef):
            yield Parameter(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id[0] != "_":
                lines = range(node.lineno, (node.end_lineno or 0) + 1)
                comment = " ".join(comments[n] for n in lines if n in comments)
                comment = comment or _above(source, node.lineno)
                hint = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
                hint = re.sub(r"^ClassVar\[(.*)\]$", r"\1", hint)
                default = None if node.value is None else double_quotes(ast.unparse(node.value))
                yield Parameter(target.id, double_quotes(hint), default, comment)


def _default(one: dataclasses.Field[Any]) -> str | None:
    if one.default is not dataclasses.MISSING:
        return value(one.default)
    return None if one.default_factory is dataclasses.MISSING else value(one.default_factory())


def constant(module: ModuleType, name: str) -> tuple[ModuleType, int, str]:
    """The module and line that define a constant, and the comment beside or above it."""
    source = inspect.getsource(module)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and any(
            (alias.asname or alias.name) == name for alias in node.names
        ):
            package = (
                module.__name__
                if hasattr(module, "__path__")
                else module.__name__.rpartition(".")[0]
            )
            return constant(import_module("." * node.level + (node.module or ""), package), name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return (
                module,
                node.lineno,
                _comments(source).get(node.lineno, "") or _above(source, node.lineno),
            )
    raise LookupError(f"{module.__name__} does not define {name}")


def _comments(source: str) -> dict[int, str]:
    """The comments of a source text, by line, without directives such as "fmt: skip"."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = {
        t.start[0]: DIRECTIVE.sub("", t.string).strip("# ")
        for t in tokens
        if t.type == tokenize.COMMENT
    }
    return {line: text for line, text in texts.items() if text}


def _above(source: str, line: int) -> str:
    """The comment in the lines directly above a line."""
    lines: list[str] = []
    for text in reversed(source.splitlines()[: line - 1]):
        if not text.strip().startswith("#"):
            break
        lines.insert(0, text.strip("# "))
    return " ".join(lines)
