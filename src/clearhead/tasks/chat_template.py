"""Chat templates: Jinja in a sandbox. A template comes with a checkpoint, so it is not trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..errors import InputError

LONGEST = 1 << 22  # characters of a rendered conversation
LARGEST = 1 << 16  # numbers that a template may repeat, pad or count by


def render(template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
    """The text of a conversation, up to where the model answers; `names` are the special tokens by their names."""
    from jinja2 import TemplateError

    try:
        made = _environment().from_string(template)
        text, parts = 0, []
        for part in made.generate(messages=list(messages), add_generation_prompt=True, **names):
            parts.append(part)
            text += len(part)
            if text > LONGEST:
                raise TemplateError(f"it writes more than {LONGEST:,} characters")
        return "".join(parts)
    except (TemplateError, ArithmeticError, RecursionError, MemoryError, TypeError, ValueError, LookupError) as cause:
        raise InputError(f"the chat template cannot render this conversation: {cause}") from cause


def _environment() -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def check(*values: Any) -> None:
        """Refuse numbers that would make a text of any size: 'a' * 10**10, 'a'.center(10**10)."""
        for value in values:
            if isinstance(value, int) and abs(value) > LARGEST:
                raise TemplateError(f"{value} is too large a number")

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            texts = any(isinstance(side, str | list | tuple | bytes) for side in (left, right))
            if operator == "**" or texts:
                check(left, right)
            if operator == "*" and texts and max(len(x) for x in (left, right) if not isinstance(x, int)) > LARGEST:
                raise TemplateError("it repeats too long a text")
            if operator == "%" and isinstance(left, str):
                raise TemplateError("the % of texts is not allowed")
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
            check(*args, *kwargs.values())
            return super().call(__context, __obj, *args, **kwargs)

        def format_string(self, *args: Any, **kwargs: Any) -> Any:
            raise TemplateError("format is not allowed")

    def refuse(problem: str) -> None:
        raise TemplateError(problem)

    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True)
    sandbox.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    for name in ("center", "indent", "wordwrap", "format", "batch", "slice"):  # filters that pad
        sandbox.filters[name] = _checked(sandbox.filters[name], check)
    return sandbox


def _checked(function: Any, check: Any) -> Any:
    from functools import wraps

    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        check(*args, *kwargs.values())
        return function(*args, **kwargs)

    return inner
