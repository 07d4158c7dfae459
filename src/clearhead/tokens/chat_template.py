"""Chat templates: Jinja in a sandbox, because a template comes with a checkpoint and is not trusted."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, Sequence, ValuesView
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

from ..errors import InputError, TextError
from .special import Special, tokenizer_settings
from .tokenizer import Tokenizer

CHAT = "chat_template.jinja"  # the file of a template in a folder
# characters of a template: those of checkpoints have a fifth of it, and compiling takes time and memory
SOURCE = 100_000
# characters that a rendered conversation, or any text that a template builds, may have
LONGEST = 1 << 22
LARGEST = 1 << 16  # largest number by which a template may repeat, pad or count
STEPS = 1 << 21  # operations of one rendering: iterations, calls, and values that are read or built
STEPS_PER_VALUE = 100  # further operations for each value in the conversation
CHARACTERS = 1 << 27  # characters of all texts that one rendering builds, together
# an operation on a text counts as a step for each so many of its characters
CHARACTERS_PER_STEP = 1 << 8
SHOWN = 1000  # characters of a template's own error message that are shown
BITS = 1 << 12  # of an integer, so that arithmetic takes no longer than other operations


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
        sections = [section for section in template if isinstance(section, dict)]
        named = {section.get("name"): section.get("template") for section in sections}
        # others are for calls of tools, or for documents
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
    template: str,
    messages: Sequence[Mapping[str, str]],
    names: Mapping[str, str],
    *,
    prompt: bool = True,
) -> str:
    """Render a conversation as one text.

    Args:
        template: The Jinja template.
        messages: The conversation: [{"role": "user", "content": "Hello!"}].
        names: The special tokens, as `token_names` returns them.
        prompt: Add the beginning of the answer that the model writes next.
    """
    from jinja2 import TemplateError

    failures = (
        TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    )  # fmt: skip
    conversation = list(messages)
    given = {
        "messages": conversation,
        "tools": None,
        "documents": None,
        "add_generation_prompt": prompt,
    }
    work = _WORK.set(_Work(conversation))
    try:
        compiled = _compiled(template)
        length, parts = 0, []
        # part by part, so that a text that is too long is noticed before it is built
        for part in compiled.generate(**given, **names):
            parts.append(part)
            length += len(part)
            if length > LONGEST:
                raise TemplateError(f"it writes more than {LONGEST:,} characters")
        return "".join(parts)
    except failures as cause:
        problem = str(cause)[:SHOWN]
        raise TextError(f"the chat template cannot render this conversation: {problem}") from cause
    finally:
        _WORK.reset(work)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    if len(template) > SOURCE:
        _raise(f"it has {len(template):,} characters: expected at most {SOURCE:,}")
    environment = _environment()
    return environment.from_string(_counting(environment.parse(template), environment))


# A template comes from anywhere and may run in any thread: its time and memory are bounded by counting what it does.
# Every iteration, call, filter, comparison and value built is a step; a rendering has so many steps, and so many
# characters that it may build. What could grow by more than a factor in one step is computed before it is done.


class _Work:
    """The steps and characters that one rendering has left."""

    def __init__(self, messages: list[Any]) -> None:
        self.steps, self.characters = STEPS, CHARACTERS
        # characters of each message, and of all, by id: they need no second count
        self.known: dict[int, int] = {}
        number = 0
        # counted once here, so that a template that reads them pays for one value each
        for message in (*messages, messages):
            more, characters = _size(message, self.known, None)
            self.known[id(message)] = characters
            number += more
        self.steps += STEPS_PER_VALUE * number
        # characters of all texts in a list, which may be the conversation
        self.longest = max(LONGEST, 4 * characters)

    def step(self, number: int = 1) -> None:
        """Take some of the steps that are left; raises if there are not so many."""
        self.steps -= number
        if self.steps < 0:
            _raise("it takes too many steps")

    def read(self, *values: Any) -> int:
        """Count the values that an operation reads, with all that is in them; returns their number of characters."""
        number, characters = self._sizes(values)
        self.step(number + characters // CHARACTERS_PER_STEP)
        return characters

    def write(self, characters: int) -> None:
        """Count the characters of a text before it is built, or of one that was built; raises if they are too many."""
        if characters > LONGEST:
            _raise(f"it builds a text of more than {LONGEST:,} characters")
        self.characters -= characters
        if self.characters < 0:
            _raise(f"it builds texts of more than {CHARACTERS:,} characters")

    def made(self, value: Any) -> Any:
        """Count the value that an operation made, and return it."""
        if type(value) is str:  # most values: the same as below, in less time
            self.step(1 + len(value) // CHARACTERS_PER_STEP)
            self.write(len(value))
            return value
        number, characters = self._sizes((value,))
        if isinstance(value, str | bytes):
            number += characters // CHARACTERS_PER_STEP
            self.write(characters)
        self.step(number)
        return value

    def _sizes(self, values: Iterable[Any]) -> tuple[int, int]:
        """The number of values, with all that is in them, and of their characters; raises if these are too many."""
        number = characters = 0
        for value in values:
            if type(value) is str:  # as `_size` counts it, in less time
                more, length = 1, len(value)
            else:
                more, length = _size(value, self.known, self.steps)
            number, characters = number + more, characters + length
        if characters > self.longest:
            _raise(f"it uses texts of more than {self.longest:,} characters")
        return number, characters


_WORK: ContextVar[_Work] = ContextVar("work")


def _size(value: Any, known: Mapping[int, int], most: int | None) -> tuple[int, int]:
    """The number of values in a value, itself included, and of all their characters.

    A value that is reached in several ways counts as often, as it does when it is compared or written.

    Args:
        value: The value.
        known: The characters of some values, by id, each of which counts as one value.
        most: The number of values after which counting stops; None: it does not.
    """
    from jinja2.utils import Namespace

    number = characters = 0
    waiting = [value]
    while waiting and (most is None or number <= most):
        item = waiting.pop()
        number += 1
        if id(item) in known:
            # part of the conversation, and counted when the rendering began
            characters += known[id(item)]
            continue
        if isinstance(item, str | bytes):
            characters += len(item)
        elif isinstance(item, int):
            # powers of powers grow faster than any text
            if item.bit_length() > BITS:
                _raise(f"it computes a number of more than {BITS:,} bits")
            # a long number counts like a text
            number += item.bit_length() // CHARACTERS_PER_STEP
        elif isinstance(item, range):
            # a loop would go through all of it
            number += len(item)
        elif isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, Namespace):
            # the values of namespace(...), whose attribute has a private name in Jinja
            waiting.append(item._Namespace__attrs)
        elif isinstance(item, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
            waiting += item
    return number, characters


def _environment() -> Any:
    """A Jinja sandbox in which a template can neither run for long nor build texts and lists of any size."""
    from jinja2 import pass_context

    extensions = ["jinja2.ext.loopcontrols", _generation_tag()]
    sandbox = _sandbox_class()(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_output
    )
    sandbox.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    del sandbox.globals["lipsum"]
    sandbox.filters["tojson"] = _to_json
    for name, function in sandbox.filters.items():
        sandbox.filters[name] = _refused(name) if name in REFUSED else _counted(name, function)
    for name in COMPARISONS & sandbox.tests.keys():
        sandbox.tests[name] = _counted(name, sandbox.tests[name])
    # with the context they are not computed when a template is compiled
    for function in (_step, _made, _compared, _joined):
        sandbox.filters[function.__name__] = pass_context(function)
    return sandbox


def _sandbox_class() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            work = _WORK.get()
            if operator == "+" and type(left) is str and type(right) is str:
                work.write(len(left) + len(right))
                work.step(1 + (len(left) + len(right)) // CHARACTERS_PER_STEP)
                return left + right
            are_lists = isinstance(left, list | tuple) and isinstance(right, list | tuple)
            if operator == "+" and are_lists:
                # what is in the lists was counted when they were made
                work.step(1 + len(left) + len(right))
                return super().call_binop(context, operator, left, right)
            work.read(left, right)
            has_text = any(isinstance(side, SEQUENCES) for side in (left, right))
            if operator == "**" or has_text:
                # 10 ** 10 ** 10, or 'a' * 10 ** 10
                _check_numbers(left, right)
            if operator == "*" and has_text:
                # the length of one side times the other
                sizes = [side if isinstance(side, int) else len(side) for side in (left, right)]
                if sizes[0] * sizes[1] > LONGEST:
                    _raise("it repeats too long a text")
            if operator == "%" and isinstance(left, str | bytes):
                # '%1000000000d' % 1 would make a text of any size
                _raise("the % of texts is not allowed")
            return work.made(super().call_binop(context, operator, left, right))

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
            _check_numbers(*args, *kwargs.values())
            work, owner = _WORK.get(), getattr(__obj, "__self__", None)
            work.read(owner, *args, *kwargs.values())
            # methods of texts may build texts of any size
            if isinstance(owner, str | bytes):
                name = getattr(__obj, "__name__", "")
                if name in REFUSED:
                    _raise(f"{name} is not allowed")
                if name in METHODS:
                    # checked arguments come back by position, with iterables read into lists
                    args = METHODS[name](owner, *args, **kwargs)
                    kwargs = {}
            return work.made(super().call(__context, __obj, *args, **kwargs))

        def wrap_str_format(self, value: Any) -> Any:
            """'{:10000000000}'.format(...) would make a text of any size."""
            if super().wrap_str_format(value) is None:
                return None
            return self.format_string

        def format_string(self, *args: Any, **kwargs: Any) -> Any:  # what Jinja below 3.1.5 calls
            _raise("format is not allowed")

    return Sandbox


def _counting(tree: Any, environment: Any) -> Any:
    """A template's syntax tree with counters of what the sandbox cannot see: loops, `~`, comparisons and literals."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def filtered(node: Any, function: Callable[..., Any]) -> Any:
        return nodes.Filter(node, function.__name__, [], [], None, None, lineno=node.lineno)

    def compared(node: Any) -> Any:
        if isinstance(node, nodes.Const):
            return node
        return filtered(node, _compared)

    class Counters(NodeTransformer):
        def visit_For(self, node: Any) -> Any:  # noqa: N802  (as in jinja2)
            # the template's own text inside the loop is written once per iteration
            written = sum(len(part.data) for part in node.find_all(nodes.TemplateData))
            self.generic_visit(node)
            counter = filtered(nodes.Const(written, lineno=node.lineno), _step)
            node.body.insert(0, nodes.ExprStmt(counter))
            if node.test is not None:
                # a loop with a condition also counts the values that it leaves out
                node.test = filtered(node.test, _made)
            return node

        def visit_Concat(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            return filtered(nodes.List(node.nodes, lineno=node.lineno), _joined)

        def visit_Compare(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            node.expr = compared(node.expr)
            for operand in node.ops:
                operand.expr = compared(operand.expr)
            return node

        def visit_List(self, node: Any) -> Any:  # noqa: N802
            return filtered(self.generic_visit(node), _made)

        def visit_Dict(self, node: Any) -> Any:  # noqa: N802
            return filtered(self.generic_visit(node), _made)

        def visit_Tuple(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            # not the target of an assignment, as in {% set a, b = pair %}
            if node.ctx == "load":
                return filtered(node, _made)
            return node

        def visit_Getitem(self, node: Any) -> Any:  # noqa: N802
            sliced = isinstance(node.arg, nodes.Slice)
            self.generic_visit(node)
            return filtered(node, _made) if sliced else node

    tree = Counters().visit(tree)
    tree.set_environment(environment)
    return tree


def _output(value: Any) -> Any:
    """Count a value that is written."""
    work = _WORK.get()
    if type(value) is str:
        return work.made(value)
    work.write(work.read(value))
    return value


def _step(context: Any, characters: int) -> None:
    """Count an iteration of a loop that writes some characters of the template's own text."""
    work = _WORK.get()
    work.step(1 + characters // CHARACTERS_PER_STEP)
    work.write(characters)


def _made(context: Any, value: Any) -> Any:
    """Count a value that is made."""
    return _WORK.get().made(value)


def _compared(context: Any, value: Any) -> Any:
    """Count a value that is compared."""
    _WORK.get().read(value)
    return value


def _joined(context: Any, values: list[Any]) -> str:
    """The texts of values, joined: the operator ~."""
    work = _WORK.get()
    work.write(work.read(*values))
    return str(work.made("".join(map(str, values))))


def _generation_tag() -> Any:
    """The tag {% generation %} that marks answers in some templates: what it encloses is rendered like any text."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  (as in jinja2, whose type is that of an instance)

        def parse(self, parser: Any) -> Any:
            # the name of the tag itself
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """The filter tojson as templates of checkpoints expect it: Jinja's own escapes HTML and sorts keys."""
    options: dict[str, Any] = {
        "ensure_ascii": ensure_ascii,
        "separators": separators,
        "sort_keys": sort_keys,
    }
    if indent is None and separators is None:
        return json.dumps(value, **options)
    parts, length = [], 0  # an indent, or a separator, may repeat a long text
    for part in json.JSONEncoder(indent=indent, **options).iterencode(value):
        length += len(part)
        if length > LONGEST:
            _raise(f"it builds a text of more than {LONGEST:,} characters")
        parts.append(part)
    return "".join(parts)


def _check_numbers(*values: Any) -> None:
    """Refuse numbers that would make a text of any size: 'a' * 10**10, 'a'.center(10**10)."""
    for value in values:
        if isinstance(value, int) and abs(value) > LARGEST:
            _raise(f"{value} is too large a number")


def _raise(problem: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(problem)


def _refused(name: str) -> Callable[..., Any]:
    """A filter that no conversation needs, and whose time or memory is hard to bound."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        _raise(f"{name} is not allowed")

    return refuse


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that counts what it reads and makes, and refuses what would make too much."""
    signature = inspect.signature(function)

    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        work = _WORK.get()
        if name in PADDING:
            _check_numbers(*args[1:], *kwargs.values())
        if name in ATTRIBUTES:
            _check_paths(*args[1:], *kwargs.values())
        if name in FILTERS:
            given = signature.bind(*args, **kwargs)
            FILTERS[name](given.arguments)
            args, kwargs = given.args, given.kwargs
        # slow filters take more steps per character
        characters = work.read(*args, *kwargs.values())
        work.step(characters * SLOW.get(name, 0) // CHARACTERS_PER_STEP)
        return work.made(function(*args, **kwargs))

    return inner


def _check_paths(*values: Any) -> None:
    for value in values:
        if isinstance(value, str) and len(_PARTS.findall(value)) > PARTS:
            _raise("an attribute has too many parts")


# The length of a text is checked before it is built.


def _check_replace(text: str, old: str, new: str, count: int | None = None) -> None:
    times = text.count(old)
    if count is not None and count >= 0:
        # a negative count, excluded here, stands for all occurrences
        times = min(count, times)
    _WORK.get().write(len(text) + times * len(new))


def _check_join(between: str, values: list[Any]) -> None:
    work = _WORK.get()
    work.write(work.read(*values) + len(between) * len(values))


def _replace_method(text: Any, old: Any, new: Any, count: int = -1) -> tuple[Any, ...]:
    _check_replace(text, old, new, count)
    return old, new, count


def _join_method(between: Any, values: Iterable[Any]) -> tuple[Any, ...]:
    values = list(values)
    _check_join(between, values)
    return (values,)


def _expandtabs_method(text: Any, tabsize: int = 8) -> tuple[Any, ...]:
    _WORK.get().write(len(text) * max(tabsize, 1))
    return (tabsize,)


def _translate_method(text: Any, table: Any, *more: Any) -> tuple[Any, ...]:
    values = table.values() if isinstance(table, dict) else ()
    longest = max((len(value) for value in values if isinstance(value, str)), default=1)
    _WORK.get().write(len(text) * longest)
    return (table, *more)


def _replace_filter(given: dict[str, Any]) -> None:
    _check_replace(str(given["s"]), str(given["old"]), str(given["new"]), given.get("count"))


def _join_filter(given: dict[str, Any]) -> None:
    given["value"] = list(given["value"])
    _check_join(str(given.get("d", "")), given["value"])


def _indent_filter(given: dict[str, Any]) -> None:
    text, width = str(given["s"]), given.get("width", 4)
    # added to each line of the text: so many spaces, or a text
    more = width if isinstance(width, int) else len(width)
    _WORK.get().write(len(text) + (len(text.splitlines()) + 1) * more)


def _wordwrap_filter(given: dict[str, Any]) -> None:
    text, between = str(given["s"]), str(given.get("wrapstring") or "")
    if len(text) > LARGEST:
        _raise(f"it wraps a text of more than {LARGEST:,} characters")
    _WORK.get().write((len(text) + 1) * (len(between) + 1))


def _sum_filter(given: dict[str, Any]) -> None:
    if not isinstance(given.get("start", 0), int | float):
        _raise("it adds up what is no number")


SEQUENCES = (str, list, tuple, bytes)
# filters and methods of texts
REFUSED = frozenset({"decode", "encode", "format", "pprint", "striptags", "urlize"})
PADDING = frozenset({
    "batch", "center", "indent", "round", "slice", "tojson", "truncate", "wordwrap",
})  # fmt: skip
# times as long as other filters
SLOW = {
    "title": 64,
    "urlencode": 64,
    "wordcount": 64,
    "wordwrap": 1024,
    "xmlattr": 64,
}
COMPARISONS = frozenset({
    "eq", "equalto", "==", "ne", "!=", "gt", "greaterthan", ">", "ge", ">=", "lt", "lessthan", "<", "le", "<=", "in",
})  # fmt: skip
# filters that take the path of an attribute: a.b.c
ATTRIBUTES = frozenset({
    "groupby", "join", "map", "max", "min", "rejectattr", "selectattr", "sort", "sum", "unique",
})  # fmt: skip
PARTS = 100  # parts that such a path may have
_PARTS = re.compile("[.,]")
METHODS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "expandtabs": _expandtabs_method,
    "join": _join_method,
    "replace": _replace_method,
    "translate": _translate_method,
}
FILTERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "indent": _indent_filter,
    "join": _join_filter,
    "replace": _replace_filter,
    "sum": _sum_filter,
    "wordwrap": _wordwrap_filter,
}
