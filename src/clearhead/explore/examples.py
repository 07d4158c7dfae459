"""What to try a model with: texts, if its card has none, and the example images that ship."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from .. import config
from .. import tokens as text
from ..data.images.files import FOLDER, SCENES
from ..data.images.preprocessing import Preprocessing
from ..data.text.labelled import MASKS
from ..errors import UserError
from ..models import family
from ..tasks.classify import class_names
from ..tokens import Pair, Symbols, Tokenizer, Words
from ..tokens.special import tokenizer_settings
from ..weights import Bundle, native
from ..weights.fill import on_meta_device
from ..weights.huggingface.preprocessor import read_preprocessing
from ..weights.peft import load as peft

TEXTS = {  # by what the model can do ("chat": with a chat template); the first that fits is used
    "chat": ("What is the capital of France?", "Write a sentence about the sea.", "Who are you?"),
    "generate": ("Once upon a time", "The man", "It was"),
    "fill": ("The capital of France is [MASK].", "A dog is [MASK] across the field."),
    "classify": ("A wonderful film from beginning to end.", "I have rarely been so bored."),
    "embed": ("A man is playing the guitar.", "Somebody makes music."),
}
SENTENCES = {  # for translators, by the language of the source
    "de": ("Ich weiß, dass du es magst.", "Zwei Hunde laufen über das grüne Feld."),
    "en": ("I know that you like it.", "Two dogs run across the green field."),
    "es": ("Sé que te gusta.", "Dos perros corren por el campo verde."),
    "fr": ("Je sais que tu l'aimes.", "Deux chiens courent dans le champ vert."),
    "it": ("So che ti piace.", "Due cani corrono nel campo verde."),
    "nl": ("Ik weet dat je het leuk vindt.", "Twee honden rennen over het groene veld."),
    "pt": ("Eu sei que você gosta.", "Dois cachorros correm pelo campo verde."),
}
# ISO 639-3
CODES = {"deu": "de", "eng": "en", "spa": "es", "fra": "fr", "ita": "it", "nld": "nl", "por": "pt"}
SOURCE_KEYS = ("source_lang", "src_lang")  # of tokenizer_config.json
LENGTH = 8  # symbols of an example of generated sequences
# examples of rows whose most frequent symbol is asked for
MOST = ((0, 1, 0, 2, 0), (2, 1, 1, 0, 1))


def mask_name(bundle: Bundle) -> str | None:
    """The mask token as written in texts, such as [MASK]; None if the model does not predict masked tokens."""
    if "fill" not in bundle.can or bundle.tokens is None:
        return None
    return next((name for name in MASKS if name in bundle.tokenizer().special_names), MASKS[0])


def examples_of(bundle: Bundle, task: str | None = None, names: Sequence[str] = ()) -> list[str]:
    """Texts that a model can read; none for a translator from a language that is not known.

    Args:
        bundle: The model.
        task: The name of the data set that it was trained on, if that is known.
        names: Names of the model, which may say what it translates: "opus-mt-fr-en".
    """
    tokens = bundle.tokens.source if isinstance(bundle.tokens, Pair) else bundle.tokens
    if tokens is None:
        return []
    if isinstance(tokens, Symbols):
        # Generated sequences have symbols in place of words.
        return _of_symbols(tokens, bundle.max_tokens or 2 * LENGTH, task)
    if "translate" in bundle.can:
        examples = [
            text
            for text in SENTENCES.get(source_language(bundle, names) or "", ())
            if _fits(tokens, text)
        ]
        # Any words of its vocabulary are better than nothing; pieces of subwords would be no text.
        return examples or (_of_vocabulary(tokens, None) if isinstance(tokens, Words) else [])
    able = bundle.can | ({"chat"} if bundle.chat is not None else set())
    # TEXTS is ordered: the first capability that the model has decides.
    texts = next((texts for capability, texts in TEXTS.items() if capability in able), ())
    mask = mask_name(bundle)
    examples = [text if mask is None else text.replace(MASKS[0], mask) for text in texts]
    return [text for text in examples if _fits(tokens, text)] or _of_vocabulary(tokens, mask)


def source_language(bundle: Bundle, names: Sequence[str]) -> str | None:
    """The language that a translator reads, as a key of SENTENCES: by its tokenizer's settings, or else by a name."""
    settings = {} if bundle.folder is None else tokenizer_settings(bundle.folder)
    # The settings know best; names are read only for what they lack.
    told = next((settings[key] for key in SOURCE_KEYS if isinstance(settings.get(key), str)), "")
    pairs = [pair for name in names for pair in pairwise(re.split(r"[^a-z]+", name.lower()))]
    # In "opus-mt-fr-en" the pairs are opus-mt, mt-fr, fr-en: the last pair of codes is source and target.
    sources = [source for source, target in reversed(pairs) if re.fullmatch("[a-z]{2,3}", target)]
    return next(filter(None, map(_code, [re.split(r"[^A-Za-z]", told)[0].lower(), *sources])), None)


def _code(word: str) -> str | None:
    """The language that a code such as "fr" or "fra" means, if there are examples of it."""
    return word if word in SENTENCES else CODES.get(word)


def answer_length(bundle: Bundle, task: str | None = None) -> int | None:
    """The number of tokens that answer an example of generated sequences; None for texts."""
    if not isinstance(bundle.tokens, Symbols):
        return None
    # These tasks ask for a single symbol after the row.
    short = task in ("most", "recall") or (task is None and bundle.tokens.marks != ("|",))
    return 1 if short else _length(bundle.tokens, bundle.max_tokens or 2 * LENGTH)


def _length(tokens: Symbols, context: int) -> int:
    return max(1, min(LENGTH, tokens.count, context // 2))


def _of_symbols(tokens: Symbols, context: int, task: str | None) -> list[str]:
    # A row in order, and a row with its odd symbols before its even ones. Marks have ids after all symbols.
    n, sep = _length(tokens, context), tokens.count
    rows: list[list[int]] = [list(range(n)), [*range(1, n, 2), *range(0, n, 2)]]
    if task == "most" and tokens.count > 2 and context > len(MOST[0]):
        rows = [list(row) for row in MOST]
    # The task recall: one mark before a symbol, and at the end the other, which asks for it.
    if len(tokens.marks) == 2:
        rows = [[*row[: n // 2], sep, *row[n // 2 :], sep + 1] for row in rows]
    elif tokens.marks:
        rows = [[*row, sep] for row in rows]
    return [tokens.decode(row) for row in rows]


def _fits(tokens: Tokenizer, text: str) -> bool:
    """Whether every part of a text is in the vocabulary."""
    for mask in MASKS:
        # A mask is replaced by one id before encoding, so it need not be in the vocabulary.
        text = text.replace(mask, "")
    try:
        ids = tokens.encode(text).tolist()
    # A tokenizer without <unk> raises for a word that it does not know.
    except UserError:
        return False
    return bool(ids) and (tokens.unknown is None or tokens.unknown not in ids)


def _of_vocabulary(tokens: Tokenizer, mask: str | None) -> list[str]:
    """A text of the first tokens of a vocabulary, and a mask."""
    special = {tokens.pad, tokens.start, tokens.end, tokens.unknown, *tokens.special_names.values()}
    text = tokens.decode([i for i in range(len(tokens)) if i not in special][:LENGTH]).strip()
    if not text or not _fits(tokens, text):
        return []
    return [text if mask is None else f"{text} {mask}"]


# Example images: small, and free of copyright restrictions (example_images/LICENCE.txt).


NAMES = (
    "golf-ball",
    "parachute",
    "church",
    "cat",
    "airplane",
    "ship",
    "coffee",
    "rocket",
    "photographer",
)


@cache
def example_file(name: str) -> bytes:
    """The file of an example image."""
    return (FOLDER / f"{name}.webp").read_bytes()


def examples_for(bundle: Bundle) -> list[str]:
    """The names of the example images, those that a model knows first: by their class, or as scenes to describe."""
    if "caption" in bundle.can:
        return [*SCENES, *(name for name in NAMES if name not in SCENES)]
    labels = class_names(bundle) if "classify" in bundle.can else ()
    # A class of ImageNet lists synonyms with commas: "warplane, military plane".
    known = {part.strip().lower() for label in labels for part in label.split(",")}
    return sorted(NAMES, key=lambda name: name.replace("-", " ") not in known)


# Outline: what a folder that a training saved says about its model, without loading the weights.


@dataclass(frozen=True, kw_only=True, eq=False)
class Outline:
    """The traits of a model that decide which views can use it, with the names of a Bundle's attributes."""

    name: str  # class of the model
    parameters: int
    can: frozenset[str]  # capabilities
    reads: str  # its input
    tokens: Path | None  # file of its tokenizer
    preprocessing: Preprocessing | None


def outline(folder: Path) -> Outline:
    """The outline of a model folder in our own layout, or of adapters that we saved; raises for other folders."""
    # Adapters (PEFT) have settings of their own, which name the base model's family and options.
    apart = peft.is_peft(folder)
    table = config.load(folder / (peft.OURS if apart else "config.json"))
    saved = config.read(peft.AdapterSettings if apart else native.FolderSettings, table)
    kind, options = family(saved.model)
    chosen = config.read(options, config.Table(saved.options))
    # Tensors without storage: counting parameters costs no memory and reads no weights.
    with on_meta_device():
        model = kind(chosen)
    return Outline(
        name=model.name,
        parameters=sum(p.numel() for p in model.parameters()),
        can=model.can,
        reads=model.reads,
        tokens=text.saved(folder),
        preprocessing=read_preprocessing(folder),
    )
