"""Chat templates: Jinja in a sandbox, because a template comes with a checkpoint and is not trusted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

from ..errors import InputError, TextError
from .special import Special, tokenizer_settings
from .tokenizer import Tokenizer

CHAT = "chat_template.jinja"  # the file of a template in a folder
LONGEST = 1 << 22  # characters that a rendered conversation may have
LARGEST = 1 << 16  # largest number by which a template may repeat, pad or count


def read_template(folder: Path) -> str | None:
    """The chat template of a folder, in chat_template.jinja or tokenizer_config.json; None if it has none."""
    path = folder / CHAT
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as cause:
            raise InputError(f"{path}: is not UTF-8 text ({cause})") from cause
    template = tokenizer_settings(folder).get("chat_template")
    if isinstance(template, list):  # several, each with a name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def token_names(special: Special | None, tokens: Tokenizer) -> dict[str, str]:
    """The special tokens that a template may write, by the names that templates use; "" for one that is missing."""
    own = Special.of(tokens)
    given = special or own
    ids = {
        "bos_token": own.start if given.start is None else given.start,
        "eos_token": next(iter(given.ends or own.ends), None),
        "pad_token": own.pad if given.pad is None else given.pad,
        "unk_token": tokens.unknown,
    }
    return {name: "" if i is None else tokens.pieces([i])[0] for name, i in ids.items()}


def render(
    template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str], *, prompt: bool = True
) -> str:  # fmt: skip
    """Render a conversation as one text.

    Args:
        template: The Jinja template.
        messages: The conversation: [{"role": "user", "content": "Hello!"}].
        names: The special tokens, as `token_names` returns them.
        prompt: Add the beginning of the answer that the model writes next.
    """
    from jinja2 import TemplateError

    try:
        compiled = _compiled(template)
        length, parts = 0, []
        given = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": prompt}
        for part in compiled.generate(**given, **names):
            parts.append(part)
            length += len(part)
            if length > LONGEST:
                raise TemplateError(f"it writes more than {LONGEST:,} characters")
        return "".join(parts)
    except (TemplateError, ArithmeticError, RecursionError, MemoryError, TypeError, ValueError, LookupError) as cause:
        raise TextError(f"the chat template cannot render this conversation: {cause}") from cause


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    return _environment().from_string(template)


def _environment() -> Any:
    """A Jinja sandbox in which a template cannot build a text of any size."""
    extensions = ["jinja2.ext.loopcontrols", _generation_tag()]
    sandbox = _sandbox_class()(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    sandbox.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
    sandbox.filters["tojson"] = _to_json
    for name in ("tojson", "center", "indent", "wordwrap", "batch", "slice"):  # filters that pad
        sandbox.filters[name] = _checked(sandbox.filters[name])
    sandbox.filters["format"] = sandbox.format_string
    return sandbox


def _sandbox_class() -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            texts = any(isinstance(side, str | list | tuple | bytes) for side in (left, right))
            if operator == "**" or texts:
                _check_numbers(left, right)
            if operator == "*" and texts:
                times, length = (x if isinstance(x, int) else len(x) for x in (left, right))
                if times * length > LONGEST:
                    raise TemplateError("it repeats too long a text")
            if operator == "%" and isinstance(left, str):
                raise TemplateError("the % of texts is not allowed")
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
            _check_numbers(*args, *kwargs.values())
            return super().call(__context, __obj, *args, **kwargs)

        def wrap_str_format(self, value: Any) -> Any:
            """'{:10000000000}'.format(...) would make a text of any size."""
            return None if super().wrap_str_format(value) is None else self.format_string

        def format_string(self, *args: Any, **kwargs: Any) -> Any:  # what Jinja below 3.1.5 calls
            raise TemplateError("format is not allowed")

    return Sandbox


def _generation_tag() -> Any:
    """The tag {% generation %} that marks answers in some templates: what it encloses is rendered like any text."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  (as in jinja2, whose type is that of an instance)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The filter tojson as templates of checkpoints expect it: Jinja's own escapes HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _check_numbers(*values: Any) -> None:
    """Refuse numbers that would make a text of any size: 'a' * 10**10, 'a'.center(10**10)."""
    for value in values:
        if isinstance(value, int) and abs(value) > LARGEST:
            _raise(f"{value} is too large a number")


def _raise(problem: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(problem)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses large numbers."""

    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        _check_numbers(*args, *kwargs.values())
        return function(*args, **kwargs)

    return inner
