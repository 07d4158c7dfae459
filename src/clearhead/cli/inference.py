"""Subcommands that run a model: translate, evaluate, generate, chat, score, fill, classify, embed, parity."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import completion
from .arguments import DataFolder, Device, Json, Model, Text, Texts, Type, keyword_options
from .image_input import images_of
from .output import progress, rows, show
from .text_input import lines_of, text_or_stdin
from .verb import verb

Options = Annotated[
    list[str] | None, typer.Argument(metavar="OPTION", help="Options, written name=value: see above.")
]  # fmt: skip


@verb(
    'clearhead translate en-de "A dog runs." beams=5',
    "clearhead translate runs/en-de news.txt > news.de",
    options=("tasks/translate.py", "translate"),
)
def translate(
    model: Model, text: Text, options: Options = None, device: Device = "auto", as_json: Json = False
) -> None:  # fmt: skip
    """Translate a sentence, or each line of a file; --json adds scores, tokens and the alignment."""
    from ..data.files import as_line
    from ..tasks.translate import translate
    from ..weights import load

    lines = lines_of(text)
    chosen = keyword_options(translate, options)
    bundle = load(model, device=device)
    with progress() as done:
        translations: Any = translate(bundle, lines, done=lambda n: done(n, len(lines)), **chosen)
    if as_json:
        show([one.to_dict() for one in translations], True)
    else:
        for one in translations:
            print(as_line(one.text))


@verb(
    "clearhead evaluate runs/en-de multi30k split=test_2017_flickr beams=5 protocol=moses",
    "clearhead evaluate runs/shakespeare shakespeare last=0.1 stride=64",
    "clearhead evaluate runs/en-de news.en news.de source=en target=de --out news.hyp",
    "clearhead evaluate runs/pets photos/",
    "clearhead evaluate vit-cifar10 cifar10",
    options=("tasks/evaluate.py", "evaluate"),
)
def evaluate(
    model: Model,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA",
            help="For a translator: multi30k, tatoeba, a file of source TAB target, or two files. For a captioner: "
            "flickr8k or scenes. For a language model: a text file. For a classifier: sst2, a file of text TAB label; "
            "cifar10, fashion-mnist, imagenette, mnist, or a folder of images with a folder per class. Then options, "
            "name=value.",
            autocompletion=completion.sets,
        ),
    ],
    root: DataFolder = None,
    out: Annotated[Path | None, typer.Option("--out", help="A file for the model's answers, one per line.")] = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
) -> None:
    """Measure a model on held-out data: BLEU and chrF, scores of captions, perplexity, or accuracy."""
    from ..atomic_files import atomic_write
    from ..errors import InputError
    from ..tasks.evaluate import evaluate
    from ..weights import load

    files = [word for i, word in enumerate(data) if not i or "=" not in word]
    options = keyword_options(evaluate, [word for word in data[1:] if "=" in word])
    if out is not None:  # checked before the work is done
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.is_dir() or not os.access(out.parent, os.W_OK):
            raise InputError(f"--out {out}: expected the name of a file, in a folder that can be written to")
    bundle = load(model, device=device, dtype=dtype)
    with progress() as done:
        result: Any = evaluate(bundle, files[0] if len(files) == 1 else files, root=root, done=done, **options)
    show(result, as_json)
    if out is not None:
        answers = result.to_dict().get("hypotheses")
        if answers is None:
            raise InputError(f"--out {out}: a language model has no answers to write, only perplexity")
        atomic_write(out, "".join(f"{line}\n" for line in answers).encode())


@verb(
    'clearhead generate everyday "The man" temperature=0.7 top_p=0.9 seed=1',
    'clearhead generate runs/shakespeare "ROMEO:" max_new=300 temperature=0.8 seed=7',
    options=("tasks/generate.py", "generate"),
)
def generate(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text to continue, or - for stdin.")],
    options: Options = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
) -> None:
    """Continue a text, printed token by token; --json adds every token, the log-probability and the seed.

    Greedy decoding is the default, with which small models soon repeat themselves; a temperature, top_k, top_p, min_p
    or seed samples instead, anew each time if no seed is given.
    """
    from ..tasks.generate import generate, stream
    from ..weights import load

    prompt = text_or_stdin(text)
    chosen, bundle = keyword_options(generate, options), load(model, device=device, dtype=dtype)
    if as_json or chosen.get("samples", 1) != 1 or chosen.get("beams", 1) != 1:
        result: Any = generate(bundle, prompt, **chosen)
        if as_json:
            show(result, True)
        else:  # printed as it is: a table would leave out control characters
            print("\n\n".join(one.text for one in (result, *result.others)))
        return
    for piece in stream(bundle, prompt, **{n: x for n, x in chosen.items() if n not in ("samples", "beams")}):
        print(piece, end="", flush=True)
    print()


@verb(
    'clearhead chat smollm2.gguf --system "You answer in one sentence."',
    options=("tasks/generate.py", "chat"),
)
def chat(
    model: Model,
    options: Options = None,
    system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
    device: Device = "auto",
    dtype: Type = None,
) -> None:
    """Chat with a model that has a chat template; an empty line, or the end of the input, ends it."""
    from ..tasks.generate import chat, conversation
    from ..weights import load

    chosen, bundle = keyword_options(chat, options), load(model, device=device, dtype=dtype)
    messages = [] if system is None else [{"role": "system", "content": system}]
    conversation(bundle, [*messages, {"role": "user", "content": "Hello."}])  # raises before the user types
    while line := _next_line():
        messages.append({"role": "user", "content": line})
        answer = ""
        for piece in chat(bundle, messages, **chosen):
            print(piece, end="", flush=True)
            answer += piece
        print()
        messages.append({"role": "assistant", "content": answer})


def _next_line() -> str:
    """The next line of stdin, with a prompt if it is a terminal."""
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
        str | None, typer.Argument(metavar="TRANSLATION", help="Its translation, for a translator.")
    ] = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
) -> None:
    """Print the log-probability of a text, token by token, or that of a translation."""
    from ..tasks import score
    from ..tasks.text import Likelihood
    from ..weights import load

    source = text_or_stdin(text)
    result = score(load(model, device=device, dtype=dtype), source, target)
    if as_json:
        show(result, True)
    elif isinstance(result, Likelihood):
        each = zip(result.logprobs, result.pieces, strict=True)
        lines = [("-" if one is None else f"{one:.2f}", piece) for one, piece in each]
        show(rows(*lines, (f"{result.logprob:.2f}", f"nats in all; perplexity {result.perplexity:.2f}")), False)
    else:
        show(rows((f"{result.logprob:.2f}", f"nats in all; {result.score:.2f} per token")), False)


@verb(
    'clearhead fill cloze "A dog is [MASK] in the park."',
)
def fill(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text with one or more \\[MASK] in it.")],
    top: Annotated[int, typer.Option(help="Words to show for each mask.")] = 5,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict the masked tokens of a text: the likeliest words for each, with their probabilities."""
    from ..tasks import fill
    from ..weights import load

    result = fill(load(model, device=device), text, top=top)
    show(result if as_json else rows(*_shares(result)), as_json)


@verb(
    'clearhead classify runs/sst2 "a stirring , funny film"',
    "clearhead classify runs/pets cat.jpg dog.png --top 3",
)
def classify(
    model: Model,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Texts, files with one text per line, or - for stdin; or image files and folders.",
        ),
    ],
    top: Annotated[int | None, typer.Option(help="Classes to show for each; all if not given.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Classify texts (or each line of a file), or images: the classes with their probabilities."""
    from ..tasks.classify import CLASSIFIERS, classify
    from ..weights import load

    bundle = load(model, device=device)
    bundle.require("classify", CLASSIFIERS)
    images = bundle.reads == "images"
    items: list[Any] = images_of(inputs) if images else lines_of(*inputs)
    result: Any = classify(bundle, items, top=top)
    if as_json and images:
        result = [{"image": name, "classes": one} for name, one in zip(items, result, strict=True)]
    show(result if as_json else rows(*_shares(result, items if images else None)), as_json)


def _shares(result: Any, names: list[str] | None = None) -> list[tuple[str, str]]:
    """A row of names and probabilities for each text, image or mask, after the name of each image."""
    lines = ["  ".join(f"{name} {share:.1%}" for name, share in one) for one in result]
    return list(zip(names or [""] * len(lines), lines, strict=True))


@verb(
    'clearhead embed minilm/ "How old are you?" "What is your age?"',
    "clearhead embed minilm/ questions.txt > vectors.json",
    "clearhead embed dinov2-small/ cat.jpg photos/",
)
def embed(model: Model, inputs: Texts, device: Device = "auto") -> None:
    """Print an embedding of each text (or line of a file) or image, as JSON; the dot product of two is their cosine.

    Those of images are with the name of each file.
    """
    from ..tasks import embed
    from ..weights import load

    bundle = load(model, device=device)
    images = bundle.reads == "images"
    items: list[Any] = images_of(inputs) if images else lines_of(*inputs)
    vectors = embed(bundle, items).tolist()
    named = [{"image": name, "vector": one} for name, one in zip(items, vectors, strict=True)]
    show(named if images else vectors, True)


@verb(
    "clearhead parity path/to/gpt2 --json",
)
def parity(model: Model, as_json: Json = False) -> None:
    """Show which tensors of a checkpoint were used, and how far its outputs are from the reference's."""
    from ..weights import certificate

    result = certificate(model)
    show(result if as_json else str(result), as_json)
