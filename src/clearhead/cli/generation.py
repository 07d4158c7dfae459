"""Subcommands that write: generate and chat."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any

import typer

from .answers import print_answers, write_json
from .arguments import Device, Json, Model, Options, Type, divided, keyword_options
from .output import show
from .text_input import Item, read_texts, text_or_stdin
from .verb import verb

Message = dict[str, str]  # {"role": "user", "content": "..."}
Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="With --json: also an object per token, as it comes, before the whole result.",
    ),
]


@verb(
    'clearhead generate everyday "The man" temperature=0.7 top_p=0.9 seed=1',
    'clearhead generate runs/shakespeare "ROMEO:" max_new=300 temperature=0.8 seed=7',
    'clearhead generate everyday "The man" --stream --json',
    options=("tasks/generate.py", "generate"),
)
def generate(
    model: Model,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="A text to continue, or - for stdin.")
    ],
    options: Options = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
    stream: Stream = False,
) -> None:
    """Continue a text, printed token by token; --json adds every token, the log-probability and the seed.

    --json prints one object at the end. --stream --json prints JSON Lines: {"piece", "id", "logprob"} for each token
    as it comes, then that object; the pieces together are its "text". Several samples are numbered.

    Greedy decoding is the default, with which small models soon repeat themselves; a temperature, top_k, top_p, min_p
    or seed samples instead, anew each time if no seed is given.
    """
    from ..errors import InputError
    from ..tasks.generate import generate, generating
    from ..weights import load

    prompt = text_or_stdin(text)
    chosen = keyword_options(generate, options)
    # Samples and hypotheses come all at once: there is nothing to stream.
    several = chosen.get("samples", 1) != 1 or chosen.get("beams", 1) != 1
    if stream and several:
        raise InputError(
            "--stream: expected one answer without a beam search, samples=1 and beams=1"
        )
    bundle = load(model, device=device, dtype=dtype)
    # JSON of the whole result needs no steps in between.
    if several or (as_json and not stream):
        result: Any = generate(bundle, prompt, **chosen)
        if as_json:
            show(result, True)
        else:  # printed as it is: a table would leave out control characters
            print("\n\n".join(_numbered([one.text for one in (result, *result.others)])))
        return
    result = _follow(generating(bundle, prompt, **chosen), pieces=as_json, text=not as_json)
    if as_json:
        write_json(result.to_dict())


def _numbered(texts: list[str]) -> list[str]:
    """Several texts with their numbers; one text as it is."""
    if len(texts) == 1:
        return texts
    lines = []
    for number, text in enumerate(texts, 1):
        # most continuations begin with a space of their own
        space = "" if text[:1].isspace() else " "
        lines.append(f"{number}:{space}{text}")
    return lines


@verb(
    'clearhead chat smollm2.gguf --system "You answer in one sentence."',
    'clearhead chat smollm2.gguf "What is attention?" max_new=60',
    "clearhead chat smollm2.gguf --messages questions.jsonl --json > answers.jsonl",
    options=("tasks/generate.py", "chat"),
    more="""--messages reads JSON Lines. If every line is a message, {"role": "user", "content": "Hello!"}, they are one
conversation, which is answered. If every line is a conversation, {"messages": [...]}, each is answered as soon as it is
read, and a line of text, or an object with --json, is printed for it. ShareGPT's words are read as well:
{"conversations": [{"from": "human", "value": "Hello!"}]}.""",
)
def chat(
    model: Model,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUESTION OPTION",
            help="A question, which is answered instead of those of stdin; and options, written name=value: see above.",
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", help="The system message, for conversations without one."),
    ] = None,
    messages: Annotated[
        str | None,
        typer.Option(
            "--messages", metavar="FILE", help="Answer the messages of a file, or - for stdin."
        ),
    ] = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
    stream: Stream = False,
) -> None:
    """Chat with a model that has a chat template; an empty line, or the end of the input, ends it.

    --json prints each answer as one object on a line: the message, with "role" and "content", and its tokens, their
    log-probability and the seed. --stream --json prints {"piece", "id", "logprob"} for each token before it.
    """
    from ..errors import InputError
    from ..tasks.generate import chat, conversation
    from ..weights import load

    questions, words = divided(options)
    # A word without "=" is the question.
    if len(questions) > 1:
        raise InputError(
            f"{len(questions)} questions, {questions}: expected one, in quotes; --messages reads several"
        )
    if questions and messages is not None:
        raise InputError("a question and --messages: expected one of them")
    chosen, bundle = keyword_options(chat, words), load(model, device=device, dtype=dtype)
    begin = [] if system is None else [{"role": "system", "content": system}]
    # A model without a chat template raises here, before the user types.
    conversation(bundle, [*begin, {"role": "user", "content": "Hello."}])
    answer = _Answers(bundle, chosen, as_json=as_json, stream=stream)
    if messages is not None:
        _answer_file(messages, begin, answer)
        return
    if questions:
        answer.show([*begin, {"role": "user", "content": questions[0]}])
        return
    history = begin
    while line := _next_line():
        # The whole history is read again for each answer; models keep nothing between two calls.
        history = [*history, {"role": "user", "content": line}]
        history = [*history, answer.show(history)]


class _Answers:
    """The answers of a chat model, printed as they come: as text, or as JSON."""

    def __init__(
        self, bundle: Any, options: dict[str, Any], *, as_json: bool, stream: bool
    ) -> None:
        self.bundle, self.options, self.as_json, self.stream = bundle, options, as_json, stream

    def show(self, messages: list[Message]) -> Message:
        """Print the next answer of a conversation; returns it as a message."""
        found = self.answer(messages, text=not self.as_json)
        if self.as_json:
            write_json(_record(found))
        return {"role": "assistant", "content": found.text}

    def answer(self, messages: list[Message], *, text: bool = False) -> Any:
        """The next answer of a conversation, a Generation; `text` and --stream print its tokens as they come."""
        from ..tasks.generate import answering

        pieces = self.as_json and self.stream
        return _follow(answering(self.bundle, messages, **self.options), pieces=pieces, text=text)


def _follow(steps: Iterable[Any], *, pieces: bool, text: bool) -> Any:
    """Print the pieces of an answer as they come, as JSON objects or as text; returns the whole answer."""
    from ..tasks.generate import Generation

    for step in steps:
        # The last step is the whole answer, after all of its pieces.
        if isinstance(step, Generation):
            break
        if pieces:
            write_json(step.to_dict())
        elif text:
            # Flushed, because stdout is buffered by lines and an answer may have no line break.
            print(step.text, end="", flush=True)
    # The line break after the answer, which the pieces do not have.
    if text:
        print(flush=True)
    return step


def _record(answer: Any) -> dict[str, Any]:
    """An answer as a message with its tokens, their log-probability and the seed."""
    values = {name: getattr(answer, name) for name in ("logprob", "pieces", "ended", "seed")}
    return {"role": "assistant", "content": answer.text} | values


def _next_line() -> str:
    """The next line of stdin, with a prompt if it is a terminal."""
    if sys.stdin.isatty():
        # On stderr, so that stdout has only the answers.
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _answer_file(name: str, begin: list[Message], answers: _Answers) -> None:
    """Answer a file of messages: one conversation over all lines, or one conversation per line."""
    from ..data.files import DataError, as_line, locate
    from ..errors import TextError

    # A missing file is an error before the first line is read.
    if name != "-":
        locate(name)
    blocks = (
        [item for item in block if item.problem or item.text.strip()]
        for block in read_texts([name])
    )
    first = next((block for block in blocks if block), None)
    if first is None:
        raise DataError(f"{name} is empty: expected messages, one JSON object per line")
    items = chain([first], blocks)
    # The first line decides what all lines are: messages of one conversation, or a conversation
    # each.
    if _has_messages(first[0].text):
        print_answers(
            items,
            lambda lines, _: [answers.answer(_conversation(line, begin)) for line in lines],
            as_json=answers.as_json,
            plain=lambda one: as_line(one.text),
            record=_record,
            describe=_input,
            named=False,
            most=1,
        )
        return
    messages: list[Message] = []
    for item in chain.from_iterable(items):
        # Any problem is fatal here, because the answer depends on every message.
        try:
            if item.problem:
                raise TextError(item.problem)
            messages += _checked([_parsed(item.text)])
        except TextError as problem:
            raise DataError(f"{item.place}: {problem}") from problem
    answers.show(_whole(messages, begin))


def _has_messages(line: str) -> bool:
    """True if a line is a conversation, {"messages": [...]}, and not a message; invalid JSON is judged by the word."""
    try:
        return _listed(json.loads(line)) is not None
    except (ValueError, RecursionError):
        # A broken line cannot be parsed; the word shows what was meant, and the error names the
        # line later.
        return '"messages"' in line


def _listed(value: Any) -> Any:
    """The list of messages of an object; None if it has none."""
    from ..data.text.conversations import LISTS

    if isinstance(value, dict):
        # "messages", or "conversations" as ShareGPT writes it.
        return next((value[key] for key in LISTS if key in value), None)
    return None


def _conversation(line: str, begin: list[Message]) -> list[Message]:
    """The messages of a line {"messages": [...]}."""
    from ..errors import TextError

    messages = _listed(_parsed(line))
    if not isinstance(messages, list):
        raise TextError('expected a conversation, {"messages": [...]}, as on the first line')
    return _whole(_checked(messages), begin)


def _whole(messages: list[Message], begin: list[Message]) -> list[Message]:
    """A conversation with the system message before it, if it has none; raises if it needs no answer."""
    from ..errors import TextError

    if not messages:
        raise TextError("no messages")
    if messages[-1]["role"] == "assistant":
        # A model would continue the answer instead of giving a new one.
        raise TextError("the last message is the assistant's: expected one to answer")
    # A system message of the conversation itself wins over --system.
    if messages[0]["role"] == "system":
        return messages
    return [*begin, *messages]


def _parsed(line: str) -> Any:
    from ..errors import TextError

    try:
        return json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise TextError(f"not JSON: {problem}") from problem


def _checked(messages: list[Any]) -> list[Message]:
    """The messages, if all have a role and a content, in our words or in ShareGPT's."""
    from ..data.text.conversations import ROLES, message_keys
    from ..errors import TextError

    checked = []
    for one in messages:
        keys = message_keys(one)
        # ShareGPT names the keys "from" and "value", and its roles differ too.
        if keys is None or not all(isinstance(one[key], str) for key in keys):
            shown = json.dumps(one)[:60]
            raise TextError(
                f'{shown} is not a message: expected {{"role": "user", "content": "..."}}'
            )
        role, content = (one[key] for key in keys)
        checked.append({**one, "role": ROLES.get(role, role), "content": content})
    return checked


def _input(item: Item) -> dict[str, Any]:
    """The messages of a line, or the line itself if it has none."""
    try:
        messages = _listed(json.loads(item.text))
    except (ValueError, RecursionError):
        messages = None
    # The line itself, so that an answer with an error can be found in the input.
    if messages is None:
        return {"input": item.text}
    return {"messages": messages}
