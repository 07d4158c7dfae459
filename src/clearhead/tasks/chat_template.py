"""Chat templates: Jinja in a sandbox, because a template comes with a checkpoint and is not trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

from ..errors import TextError

LONGEST = 1 << 22  # characters that a rendered conversation may have
LARGEST = 1 << 16  # largest number by which a template may repeat, pad or count


def render(template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
    """Render a conversation, up to where the model answers; `names` are the special tokens by their names."""
    from jinja2 import TemplateError

    try:
        compiled = _environment().from_string(template)
        length, parts = 0, []
        for part in compiled.generate(messages=list(messages), add_generation_prompt=True, **names):
            parts.append(part)
            length += len(part)
            if length > LONGEST:
                raise TemplateError(f"it writes more than {LONGEST:,} characters")
        return "".join(parts)
    except (TemplateError, ArithmeticError, RecursionError, MemoryError, TypeError, ValueError, LookupError) as cause:
        raise TextError(f"the chat template cannot render this conversation: {cause}") from cause


def _environment() -> Any:
    """A Jinja sandbox in which a template cannot build a text of any size."""
    sandbox = _sandbox_class()(trim_blocks=True, lstrip_blocks=True)
    sandbox.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
    for name in ("center", "indent", "wordwrap", "batch", "slice"):  # filters that pad
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
