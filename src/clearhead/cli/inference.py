"""Verbs that ask a model: translate, evaluate, generate, chat, score, fill, classify, embed, parity."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from . import completion
from .arguments import DataFolder, Device, Json, Model, Text, Texts, Type, options_of
from .output import notices, progress, rows, show
from .verb import verb


@verb(
    'clearhead translate en-de "A dog runs." beams=5',
    "clearhead translate runs/en-de news.txt > news.de",
)
def translate(
    model: Model,
    text: Text,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION", help="Like beams=5, best=3, penalty=0.6, sample=true.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Translate a sentence, or a file line by line; with --json also scores, pieces and what each looked at."""
    from ..config import read
    from ..data.files import as_line
    from ..tasks.translate import Options, sentences, translate
    from ..weights import load

    lines = sentences(text)
    chosen = read(Options, options_of(options))
    bundle = load(model, device=device)
    with notices(), progress() as done:
        found: Any = translate(bundle, lines, done=lambda n: done(n, len(lines)), **chosen.to_dict())
    if as_json:
        show([one.to_dict() for one in found], True)
    else:
        for one in found:
            print(as_line(one.text))


@verb(
    "clearhead evaluate runs/en-de multi30k split=test_2017_flickr beams=5 protocol=moses",
    "clearhead evaluate runs/shakespeare shakespeare last=0.1 stride=64",
    "clearhead evaluate runs/en-de news.en news.de source=en target=de --out news.hyp",
)
def evaluate(
    model: Model,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA",
            help="A translator: multi30k, tatoeba, a file of source TAB target, or two. A language model: a text. "
            "A classifier: sst2, or a file of text TAB label. Then options.",
            autocompletion=completion.sets,
        ),
    ],
    root: DataFolder = None,
    out: Annotated[Path | None, typer.Option("--out", help="A file for the model's answers, one a line.")] = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
) -> None:
    """Measure a model on data that it has not seen: BLEU and chrF, perplexity, or accuracy."""
    from ..atomic_files import atomic_write
    from ..tasks.evaluate import evaluate
    from ..weights import load

    files = [word for i, word in enumerate(data) if not i or "=" not in word]
    options = options_of([word for word in data[1:] if "=" in word])
    if out is not None:  # found out before the work is done
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.is_dir() or not os.access(out.parent, os.W_OK):
            raise InputError(f"--out {out}: expected the name of a file, in a folder that can be written to")
    bundle = load(model, device=device, dtype=dtype)
    with notices(), progress() as done:
        found = evaluate(bundle, files[0] if len(files) == 1 else files, root=root, done=done, **options)
    show(found, as_json)
    if out is not None:
        if not hasattr(found, "hypotheses"):
            raise InputError(f"--out {out}: a language model gives no answers to write down, only how likely they are")
        atomic_write(out, "".join(f"{line}\n" for line in found.hypotheses).encode())


@verb(
    'clearhead generate everyday "The man" temperature=0.7 top_p=0.9 seed=1',
    'clearhead generate runs/shakespeare "ROMEO:" max_new=300 temperature=0.8 seed=7',
)
def generate(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text to go on with, or - for stdin.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION", help="Like max_new=200, top_p=0.9, temperature=0.8, seed=7.")
    ] = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
) -> None:
    """Go on with a text, word by word as it is written; with --json also every token and how likely it was.

    The likeliest token is taken each time, with which small models soon go in circles; a temperature, top_k, top_p,
    min_p or seed draws instead.
    """
    from ..tasks import generate, stream
    from ..weights import load

    prompt = _or_stdin(text)
    chosen, bundle = options_of(options), load(model, device=device, dtype=dtype)
    with notices():
        if as_json or chosen.get("samples", 1) != 1 or chosen.get("beams", 1) != 1:
            found: Any = generate(bundle, prompt, **chosen)
            if as_json:
                show(found, True)
            else:  # as it is: what draws tables would leave out control characters
                print("\n\n".join(one.text for one in (found, *found.others)))
            return
        for piece in stream(bundle, prompt, **chosen):
            print(piece, end="", flush=True)
        print()


def _or_stdin(text: str) -> str:
    """A text as it is, or for "-" all that is piped in."""
    from ..data.files import as_text

    return as_text(sys.stdin.buffer.read(), "stdin") if text == "-" else text


@verb(
    'clearhead chat smollm2.gguf --system "You answer in one sentence."',
)
def chat(
    model: Model,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION", help="Like max_new=400, temperature=0.7, top_p=0.9.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="What the model is told before the talk.")] = None,
    device: Device = "auto",
    dtype: Type = None,
) -> None:
    """Talk with a model that has a chat template. An empty line, or the end of the input, ends it."""
    from ..tasks import chat
    from ..tasks.generate import conversation
    from ..weights import load

    chosen, bundle = options_of(options), load(model, device=device, dtype=dtype)
    talk = [] if system is None else [{"role": "system", "content": system}]
    conversation(
        bundle, [*talk, {"role": "user", "content": "Hello."}]
    )  # whether it can be talked to, before one types
    with notices():
        while said := _asked():
            talk.append({"role": "user", "content": said})
            answer = ""
            for piece in chat(bundle, talk, **chosen):
                print(piece, end="", flush=True)
                answer += piece
            print()
            talk.append({"role": "assistant", "content": answer})


def _asked() -> str:
    """The next line that somebody types, or pipes in."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


@verb(
    'clearhead score everyday "Tom bought a new car."',
    'clearhead score fr-en "Je la mange." "I am eating it." --json',
)
def score(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text, or - for stdin.")],
    target: Annotated[
        str | None, typer.Argument(metavar="TRANSLATION", help="Its translation: a translator's.")
    ] = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
) -> None:
    """What a model thinks of a text, token by token; a translator, of a translation."""
    from ..tasks import score
    from ..tasks.text import Likelihood
    from ..weights import load

    given = _or_stdin(text)
    found = score(load(model, device=device, dtype=dtype), given, target)
    if as_json:
        show(found, True)
    elif isinstance(found, Likelihood):
        each = zip(found.logprobs, found.pieces, strict=True)
        told = [("-" if one is None else f"{one:.2f}", piece) for one, piece in each]
        show(rows(*told, (f"{found.logprob:.2f}", f"nats in all; perplexity {found.perplexity:.2f}")), False)
    else:
        show(rows((f"{found.logprob:.2f}", f"nats in all; {found.score:.2f} a token")), False)


@verb(
    'clearhead fill runs/bert "the film is [MASK] ."',
)
def fill(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text with one or more [MASK] in it.")],
    top: Annotated[int, typer.Option(help="Words to show for each gap.")] = 5,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Fill the gaps of a text: the likeliest words of each, and how likely they are."""
    from ..tasks import fill
    from ..weights import load

    found = fill(load(model, device=device), text, top=top)
    show(found if as_json else rows(*_shares(found)), as_json)


@verb(
    'clearhead classify runs/sst2 "a stirring , funny film"',
)
def classify(model: Model, texts: Texts, device: Device = "auto", as_json: Json = False) -> None:
    """Sort texts, or a file line by line: the classes of each, and how likely they are."""
    from ..tasks import classify
    from ..tasks.translate import sentences
    from ..weights import load

    lines = sentences(*texts)
    found: Any = classify(load(model, device=device), lines)
    show(found if as_json else rows(*_shares(found)), as_json)


def _shares(found: Any) -> list[tuple[str, str]]:
    """For each text or gap, the first in a line of its own."""
    return [("", "  ".join(f"{name} {share:.1%}" for name, share in one)) for one in found]


@verb(
    'clearhead embed minilm/ "How old are you?" "What is your age?"',
    "clearhead embed minilm/ questions.txt > vectors.json",
)
def embed(model: Model, texts: Texts, device: Device = "auto") -> None:
    """A vector for each text, or for each line of a file, as JSON: products of two are cosines."""
    from ..tasks import embed
    from ..tasks.translate import sentences
    from ..weights import load

    lines = sentences(*texts)
    show(embed(load(model, device=device), lines).tolist(), True)


@verb(
    "clearhead parity path/to/gpt2 --json",
)
def parity(model: Model, as_json: Json = False) -> None:
    """What became of every tensor of a checkpoint, and how far its answers are from the reference's."""
    from ..weights import certificate

    found = certificate(model)
    show(found if as_json else str(found), as_json)
