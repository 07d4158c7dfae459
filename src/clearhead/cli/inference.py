"""Subcommands that run a model on texts or images: translate evaluate score fill classify embed parity caption."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from . import completion
from .answers import print_answers, shift_seed
from .arguments import (
    DataFolder,
    Device,
    Json,
    JsonLines,
    Model,
    MoreTexts,
    Text,
    TextColumn,
    Texts,
    Type,
    divided,
    keyword_options,
)
from .output import progress, rows, show
from .text_input import Column, Item, is_text, read_texts, total_size
from .verb import verb


def images_of(inputs: Sequence[str]) -> list[str]:
    """The files given, and the image files of the folders given.

    A file of a folder that cannot be decoded is left out, and a Notice names it; one that was named itself raises when
    it is read.
    """
    from ..data.files import DataError
    from ..data.images.files import unreadable
    from ..errors import Notice
    from ..inputs.images import image_items

    images: list[str] = []
    for item in inputs:
        # A file names itself; a folder names all images inside.
        files = image_items(None, [item])[0]
        # Only folders are searched for broken files: a file that was named must not vanish
        # silently.
        bad = set(unreadable("", files)) if os.path.isdir(item) else set()
        if len(bad) == len(files):
            raise DataError(f"{item}: none of its {len(files)} images can be decoded")
        if bad:
            names = ", ".join(sorted(bad)[:5])
            if len(bad) > 5:
                names += " and others"
            # The level 2 names the caller, not this function.
            warnings.warn(
                f"{len(bad)} of {len(files)} images cannot be decoded and are left out: {names}",
                Notice,
                2,
            )
        images += [file for file in files if file not in bad]
    return images


@verb(
    'clearhead translate en-de "A dog runs." beams=5',
    'clearhead translate en-de "A dog runs." "A cat sleeps."',
    "clearhead translate runs/en-de news.txt > news.de",
    options=("tasks/translate.py", "translate"),
)
def translate(
    model: Model,
    text: Text,
    options: MoreTexts = None,
    column: TextColumn = None,
    device: Device = "auto",
    as_json: JsonLines = False,
) -> None:
    """Translate sentences, or each line of a file as it comes; --json adds scores, tokens and the alignment."""
    from ..data.files import as_line
    from ..data.tables.column_names import SOURCES, TEXTS
    from ..tasks.translate import translate
    from ..weights import load

    more, words = divided(options)
    texts = [text, *more]
    for one in texts:
        is_text(one)  # raises before the model is loaded
    chosen = keyword_options(translate, words)
    bundle = load(model, device=device)
    trained = bundle.columns.get("source")
    where = Column(name=column, usual=(*SOURCES, *TEXTS), trained=trained)
    print_answers(
        read_texts(texts, where),
        lambda texts, first: translate(bundle, texts, **shift_seed(chosen, first)),
        as_json=as_json,
        plain=lambda one: as_line(one.text),
        record=lambda one: one.to_dict(),
        named=False,
        total=total_size(texts, where),
    )


@verb(
    "clearhead evaluate runs/en-de multi30k split=test_2017_flickr beams=5 protocol=moses",
    "clearhead evaluate runs/shakespeare shakespeare last=0.1 stride=64",
    "clearhead evaluate runs/en-de news.en news.de source=en target=de --out news.hyp",
    "clearhead evaluate runs/pets photos/",
    "clearhead evaluate vit-cifar10 cifar10",
    options=("tasks/evaluation/evaluate.py", "evaluate"),
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
    out: Annotated[
        Path | None, typer.Option("--out", help="A file for the model's answers, one per line.")
    ] = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
) -> None:
    """Measure a model on held-out data: BLEU and chrF, scores of captions, perplexity, or accuracy."""
    from ..atomic_files import atomic_write
    from ..errors import InputError
    from ..tasks.evaluation.evaluate import evaluate
    from ..weights import load

    # The first word is the data even if it has "=" in its name.
    files = [word for i, word in enumerate(data) if not i or "=" not in word]
    options = keyword_options(evaluate, [word for word in data[1:] if "=" in word])
    if out is not None:  # checked before the work is done
        out.parent.mkdir(parents=True, exist_ok=True)
        # An evaluation may take hours: whether its answers can be saved is tested first.
        if out.is_dir() or not os.access(out.parent, os.W_OK):
            raise InputError(
                f"--out {out}: expected the name of a file, in a folder that can be written to"
            )
    bundle = load(model, device=device, dtype=dtype)
    read: Any = files[0] if len(files) == 1 else files
    with progress() as done:
        result: Any = evaluate(bundle, read, root=root, done=done, **options)
    show(result, as_json)
    if out is not None:
        # Perplexity has no hypotheses, and this is known only from the result.
        answers = result.to_dict().get("hypotheses")
        if answers is None:
            raise InputError(
                f"--out {out}: a language model has no answers to write, only perplexity"
            )
        atomic_write(out, "".join(f"{line}\n" for line in answers).encode())


@verb(
    'clearhead score everyday "Tom bought a new car."',
    'clearhead score fr-en "Je la mange." "I am eating it." --json',
    "clearhead score everyday sentences.txt > scores.tsv",
)
def score(
    model: Model,
    text: Text,
    target: Annotated[
        str | None, typer.Argument(metavar="TRANSLATION", help="Its translation, for a translator.")
    ] = None,
    column: TextColumn = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: JsonLines = False,
) -> None:
    """Print the log-probability of a text, token by token, or that of a translation.

    Of a file it prints for each line, as it comes, the text, its log-probability and its perplexity; of a translator,
    whose file has lines of source TAB translation, the log-probability and the mean per token.
    """
    from ..tasks import score
    from ..weights import load

    alone = is_text(text)
    bundle = load(model, device=device, dtype=dtype)
    # One text is shown as a table of its tokens, and a pair as one answer; a file has a line per
    # text.
    if target is not None or (alone and not as_json):
        result = score(bundle, text, target)
        show({"input": text, **result.to_dict()} if as_json else _score_table(result), as_json)
        return
    # A translator's tables would need two columns, so its files are read as lines with a TAB.
    where = None if "translate" in bundle.can else _text_column(bundle, column)
    print_answers(
        read_texts([text], where),
        _scorer(bundle),
        as_json=as_json,
        record=lambda one: one.to_dict(),
        plain=_score_fields,
        total=total_size([text], where),
    )


def _scorer(bundle: Any) -> Callable[[list[str], int], Any]:
    """The function that scores a batch of lines; for a translator each line is source TAB translation."""
    from ..errors import TextError
    from ..tasks.score import score, scores

    def pair(line: str) -> Any:
        # Exactly one TAB: a second one would belong to neither side.
        source, tab, target = line.partition("\t")
        if not tab or "\t" in target:
            raise TextError("this is a translator: expected source TAB translation")
        return score(bundle, source, target)

    if "translate" in bundle.can:
        return lambda texts, first: [pair(text) for text in texts]
    return lambda texts, first: scores(bundle, texts)


def _score_table(result: Any) -> Any:
    """A row per token, and the sum."""
    from ..tasks.text import Likelihood

    if not isinstance(result, Likelihood):
        return rows((f"{result.logprob:.2f}", f"nats in all; {result.score:.2f} per token"))
    # The first token has no probability, because nothing comes before it.
    each = zip(result.logprobs, result.pieces, strict=True)
    lines = [(f"{one:.2f}" if one is not None else "-", piece) for one, piece in each]
    return rows(
        *lines, (f"{result.logprob:.2f}", f"nats in all; perplexity {result.perplexity:.2f}")
    )


def _score_fields(result: Any) -> str:
    """The log-probability and the perplexity; of a translation, the log-probability and the mean per token."""
    from ..tasks.text import Likelihood

    if isinstance(result, Likelihood):
        mean = result.perplexity
    else:
        mean = result.score
    return f"{result.logprob:.2f}\t{mean:.2f}"


@verb(
    'clearhead fill cloze "A dog is [MASK] in the park."',
)
def fill(
    model: Model,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="A text with one or more \\[MASK] in it, a file with one per line, or - for stdin.",
        ),
    ],
    top: Annotated[int, typer.Option(help="Words to show for each mask.")] = 5,
    column: TextColumn = None,
    device: Device = "auto",
    as_json: JsonLines = False,
) -> None:
    """Predict the masked tokens of a text: the likeliest words for each, with their probabilities."""
    from ..tasks import fill
    from ..weights import load

    alone = is_text(text)
    bundle = load(model, device=device)
    where = _text_column(bundle, column)
    # One text: a line for each mask. A file: all masks on one line, to keep lines aligned with the input.
    between = "\n" if alone else "\t"
    print_answers(
        read_texts([text], where),
        lambda texts, first: [fill(bundle, one, top=top) for one in texts],
        as_json=as_json,
        plain=lambda masks: between.join(map(_shares, masks)),
        record=lambda masks: {"masks": masks},
        named=not alone,
        total=total_size([text], where),
    )


@verb(
    'clearhead classify runs/sst2 "a stirring , funny film"',
    "clearhead classify runs/sst2 reviews.txt --json > classes.jsonl",
    "clearhead classify runs/pets cat.jpg dog.png --top 3",
)
def classify(
    model: Model,
    inputs: Texts,
    top: Annotated[
        int | None, typer.Option(help="Classes to show for each; all if not given.")
    ] = None,
    column: TextColumn = None,
    device: Device = "auto",
    as_json: JsonLines = False,
) -> None:
    """Classify texts (or each line of a file or row of a table), or images: the classes with their probabilities."""
    from ..tasks.classify import CLASSIFIERS, classify
    from ..weights import load

    bundle = load(model, device=device)
    bundle.require("classify", CLASSIFIERS)
    items, total = _items(bundle, inputs, column)
    alone = bundle.reads != "images" and len(inputs) == 1 and is_text(inputs[0])
    print_answers(
        items,
        lambda texts, first: classify(bundle, texts, top=top),
        as_json=as_json,
        # A regression has a value in place of probabilities.
        plain=_values if bundle.scores == "value" else _shares,
        record=lambda classes: {"classes": classes},
        named=not alone,
        total=total,
    )


def _shares(classes: list[tuple[str, float]]) -> str:
    """Names with their probabilities."""
    from ..data.files import as_line

    return as_line("  ".join(f"{name} {share:.1%}" for name, share in classes))


def _text_column(bundle: Any, name: str | None) -> Column:
    """The column of a table that has the texts: that of --column, of the model's training, or with a usual name."""
    from ..data.tables.column_names import TEXTS

    return Column(name=name, usual=TEXTS, trained=bundle.columns.get("text"))


def _values(classes: list[tuple[str, float]]) -> str:
    """Names with the values of a regression."""
    from ..data.files import as_line

    return as_line("  ".join(f"{name} {value:.4g}" for name, value in classes))


def _items(
    bundle: Any, inputs: list[str], column: str | None
) -> tuple[Iterator[list[Item]], int | None]:
    """The texts or images that a model is to read, and the size of all."""
    # Images are listed before any is read, to know their number.
    if bundle.reads != "images":
        where = _text_column(bundle, column)
        return read_texts(inputs, where), total_size(inputs, where)
    images = images_of(inputs)
    return iter([[Item(text=path, place=path, given=True, key="image") for path in images]]), len(
        images
    )


@verb(
    'clearhead embed minilm/ "How old are you?" "What is your age?"',
    "clearhead embed minilm/ questions.txt > vectors.jsonl",
    "clearhead embed dinov2-small/ cat.jpg photos/",
)
def embed(model: Model, inputs: Texts, column: TextColumn = None, device: Device = "auto") -> None:
    """Print an embedding of each text (or line of a file) or image; the dot product of two is their cosine.

    Each is a JSON object on a line of its own, with the text or the name of the image file.
    """
    from ..tasks import embed
    from ..weights import load

    bundle = load(model, device=device)
    items, total = _items(bundle, inputs, column)
    print_answers(
        items,
        lambda texts, first: embed(bundle, texts).tolist(),
        as_json=True,
        plain=str,
        record=lambda vector: {"vector": vector},
        total=total,
    )


@verb(
    "clearhead parity path/to/gpt2 --json",
)
def parity(model: Model, as_json: Json = False) -> None:
    """Show which tensors of a checkpoint were used, and how far its outputs are from the reference's."""
    from ..weights import parity

    result = parity(model)
    show(result if as_json else str(result), as_json)


IMAGES = 16  # images that are captioned at a time


@verb(
    "clearhead caption captioner dog.jpg photos/ beams=5",
    'clearhead caption captioner cat.jpg text="a pet" --maps maps/',
    options=("tasks/caption.py", "caption"),
)
def caption(
    model: Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE", help="Image files and folders; then options, name=value: see above."
        ),
    ],
    maps: Annotated[
        Path | None,
        typer.Option("--maps", help="A folder for a picture per image, with a panel per word."),
    ] = None,
    evidence: Annotated[
        bool,
        typer.Option(
            "--evidence",
            help="Map which places speak for a word, instead of its attention (slower).",
        ),
    ] = False,
    device: Device = "auto",
    as_json: JsonLines = False,
) -> None:
    """Write a caption for each image; --json adds scores, and the map of every word over the image."""
    from ..data.files import as_line
    from ..errors import InputError
    from ..tasks.caption import caption
    from ..weights import load

    # os.path.exists, because Path.exists raises for long texts. A file may have "=" in its name.
    files = [word for word in images if "=" not in word or os.path.exists(word)]
    options = keyword_options(caption, [word for word in images if word not in files])
    if not files:
        raise InputError("no image: expected a file or a folder before the options")
    bundle = load(model, device=device)
    items = images_of(files)
    paths = [] if maps is None else _picture_paths(items, maps)

    def record(one: Any) -> dict[str, Any]:
        values: dict[str, Any] = one.to_dict()
        if evidence:
            values["evidence"] = one.evidence().tolist()
        return values

    def answer(batch: list[str], first: int) -> Any:
        results: Any = caption(bundle, batch, **shift_seed(options, first))
        # Without --maps there are no paths, and zip ends at once; `first` is the number of images
        # before this batch.
        for item, one, path in zip(batch, results, paths[first:], strict=False):
            _save_strip(one, item, path, evidence)
        return results

    print_answers(
        [[Item(text=item, place=item, given=True, key="image") for item in items]],
        answer,
        as_json=as_json,
        plain=lambda one: as_line(one.text),
        named=items != files or len(files) > 1,
        total=len(items),
        most=IMAGES,
        record=record,
    )


def _picture_paths(images: list[str], folder: Path) -> list[Path]:
    """A file for the picture of each image: dog.png for dog.jpg, or dog-2.png if that is an image or taken."""
    # A picture must never overwrite an image that it was made from.
    taken = {Path(image).resolve() for image in images}
    paths = []
    for image in images:
        stem = Path(image).stem
        path = folder / f"{stem}.png"
        # dog.png, dog-2.png, dog-3.png and so on, until a name is free.
        numbers = itertools.count(2)
        while path.resolve() in taken:
            path = folder / f"{stem}-{next(numbers)}.png"
        taken.add(path.resolve())
        paths.append(path)
    return paths


def _save_strip(result: Any, image: Any, path: Path, evidence: bool) -> None:
    """Draw what the captioner saw of an image, with the map of each word, into a file."""
    import numpy as np

    from ..data.images.files import open_image
    from ..draw import save, strip

    # The image as the model read it, after resizing and cropping: maps refer to that.
    seen = result.forced.bundle.preprocessing.seen(open_image(image))
    maps = result.evidence() if evidence else result.maps
    save(strip(np.asarray(seen), maps, result.words, title=result.text), path)
