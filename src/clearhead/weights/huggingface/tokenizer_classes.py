"""Tokenizers of Hugging Face folders without a tokenizer.json, whose ids depend on the class of the tokenizer.

    class of transformers            files                                     ids
    RobertaTokenizer, BartTokenizer  vocab.json, merges.txt                    <s> text </s>
    GPT2Tokenizer                    vocab.json, merges.txt                    text
    T5Tokenizer                      spiece.model                              text </s>; sentinels after the pieces
    XLMRobertaTokenizer              sentencepiece.bpe.model                   <s> text </s>
    MBartTokenizer                   sentencepiece.bpe.model                   text </s> language
    MBart50Tokenizer, NllbTokenizer  sentencepiece.bpe.model                   language text </s>
    M2M100Tokenizer                  sentencepiece.bpe.model, vocab.json       language text </s>

The SentencePiece models of fairseq have <unk>, <s> and </s> first, and their users <s>, <pad>, </s> and <unk>: the ids
of all other pieces are one higher. Languages and <mask> come after the pieces.

Read here and not by transformers, whose version 5 leaves out the normalisation of a SentencePiece model, and makes up a
vocabulary where files are missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from ... import config
from ...atomic_files import atomic_write
from ...tokens import Pair, Pieces, Subwords, Tokenizer
from ...tokens.marian import read_vocab
from ...tokens.sentencepiece import CONTROL, DEFINED, SPACE, UNKNOWN, SentencePieceModel
from ...tokens.special import Special, tokenizer_settings
from ..fill import WeightsError
from .tokenizers import byte_pairs, ended, read_byte_pairs, read_subwords, write_subwords

FAIRSEQ, SPM_FIRST = ("<s>", "<pad>", "</s>", "<unk>"), ("<unk>", "<s>", "</s>")
MASK, SENTINELS = "<mask>", 100
SPM, T5_SPM = "sentencepiece.bpe.model", "spiece.model"
# Files of tokenizers; those that `read_subwords` does not read by themselves come first.
UNREAD = (T5_SPM, SPM, "spm.model", "bpe.codes", "vocab.json", "merges.txt")
PRESENT = (*UNREAD, "vocab.txt", "tokenizer.model")

# The languages of a folder that does not list them, in the order of their ids, by its language_codes.
M2M_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi "
        "hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns "
        "oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh "
        "zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the files of a class of tokenizers are read."""

    files: tuple[str, ...]
    read: Callable[[Path, Mapping[str, Any]], Subwords | Pieces]  # folder, settings -> tokenizer


def read_tokenizer(folder: Path, *usual: str) -> Subwords | Pieces | None:
    """The tokenizer of a folder; None if it has none.

    Args:
        folder: A Hugging Face folder.
        usual: Keys of SCHEMES to use if tokenizer_config.json names none of them; the first whose files are there.

    Raises:
        WeightsError: There are files of a tokenizer that is not read here.
    """
    if (folder / "tokenizer.json").is_file():
        # ids and rules are in the file, whatever the class
        return read_subwords(folder)
    settings = tokenizer_settings(folder)
    named = str(settings.get("tokenizer_class")).removesuffix("Fast")
    present = [name for name in PRESENT if (folder / name).is_file()]
    if present and named not in GENERAL:
        # the same files give other ids in another class: to guess would be silently wrong
        raise _unread(
            folder, f"its tokenizer is a {named}, in {', '.join(present)}, which is not read here"
        )
    for name in (named, *usual):
        # a class counts if all of its files are there; the one that is named comes first
        if name in SCHEMES and set(SCHEMES[name].files) <= set(present):
            return SCHEMES[name].read(folder, settings)
    # no class whose files are all there: what is left must be whole by itself
    unread = [name for name in present if name in UNREAD]
    is_whole = "tokenizer.model" in present or {"vocab.json", "merges.txt"} <= set(unread)
    if unread and not is_whole:
        raise _unread(
            folder, f"its tokenizer is in {', '.join(unread)}, which is not read for this model"
        )
    return read_subwords(folder)


def read_pair(folder: Path, *usual: str) -> Pair | None:
    """One tokenizer for source and target, as `read_tokenizer` returns it; None if the folder has none."""
    both = read_tokenizer(folder, *usual)
    return None if both is None else Pair(both, both)


def write_pair(tokens: Tokenizer | Pair, folder: Path, special: Special) -> None:
    """Write the tokenizer of both sides: M2M-100's files for pieces with languages, or else one file for all."""
    if not isinstance(tokens, Pair) or not tokens.joint:
        raise WeightsError(f"{tokens!r}: such a folder has one tokenizer for source and target")
    both = tokens.source
    # no tokenizer.json can express these ids
    if isinstance(both, Pieces) and both.languages:
        _write_m2m(both, folder)
    else:
        if isinstance(both, Subwords):
            both = ended(both)
        write_subwords(both, folder, special)


def _roberta(folder: Path, settings: Mapping[str, Any]) -> Subwords:
    """GPT-2's byte pairs with special tokens around a text (Liu et al. 2019, section 4.4)."""
    adds_space = bool(settings.get("add_prefix_space", False))
    backend, vocab = byte_pairs(folder, adds_space), read_vocab(folder / "vocab.json")
    special = {
        "bos": "<s>",
        "eos": "</s>",
        "sep": "</s>",
        "cls": "<s>",
        "unk": "<unk>",
        "pad": "<pad>",
    }
    for name in special:
        # a folder may name its special tokens otherwise
        special[name] = str(settings.get(f"{name}_token") or special[name])
    cls, sep = special["cls"], special["sep"]
    for name, token in (("cls", cls), ("sep", sep)):
        if token not in vocab:
            raise WeightsError(f"{folder / 'vocab.json'}: there is no {token}, the {name} token")
    known = [token for token in dict.fromkeys(special.values()) if token in vocab]
    backend.add_special_tokens(known)
    mask = str(settings.get("mask_token") or MASK)
    if mask in vocab:  # it stands for a word and the space before it
        backend.add_special_tokens([AddedToken(mask, lstrip=True, special=True)])
    backend.post_processor = processors.RobertaProcessing(
        (sep, vocab[sep]), (cls, vocab[cls]), add_prefix_space=adds_space
    )
    return Subwords(backend.to_str())


def _t5(folder: Path, settings: Mapping[str, Any]) -> Subwords:
    """The model's own ids, and after them the sentinels of masked spans, the last one first (Raffel et al. 2020)."""
    model = SentencePieceModel.read(folder / T5_SPM)
    count = settings.get("extra_ids", SENTINELS)
    if type(count) is not int or count < 0:
        raise WeightsError(
            f"{folder / 'tokenizer_config.json'}: extra_ids is {count!r}: expected a number of tokens"
        )
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(count))]
    pieces = list(zip(model.pieces, model.scores, strict=True))
    special = [*_of_type(model, CONTROL, UNKNOWN), *sentinels]
    return _subwords(folder / T5_SPM, model, pieces, special, added=sentinels, after=("</s>",))


def _of_type(model: SentencePieceModel, *types: int) -> list[str]:
    """The pieces of some types."""
    return [piece for piece, type_ in zip(model.pieces, model.types, strict=True) if type_ in types]


def _fairseq(
    folder: Path, settings: Mapping[str, Any], *, language: str | None = None, last: bool = False
) -> Subwords:
    """A tokenizer with fairseq's ids, and <s> or the source's language around a text; `last`: that comes after </s>."""
    model = SentencePieceModel.read(folder / SPM)
    if model.pieces[:3] != SPM_FIRST:
        raise WeightsError(f"{folder / SPM}: begins with {model.pieces[:3]}: expected {SPM_FIRST}")
    # the first three pieces give way to four: all other ids are one higher
    pieces = [(name, 0.0) for name in FAIRSEQ]
    pieces += zip(model.pieces[3:], model.scores[3:], strict=True)
    added, before, after = [MASK], ["<s>"], ["</s>"]
    if language is not None:
        # the ids of languages follow those of the pieces
        added = _languages(folder, settings, len(pieces))
        source = str(settings.get("src_lang") or language)
        if source not in added:
            raise _unread(
                folder, f"tokenizer_config.json does not have {source} among its languages"
            )
        if MASK not in added:
            added = [*added, MASK]
        # an mBART has the language behind </s>, the others before the text
        before, after = ([], ["</s>", source]) if last else ([source], ["</s>"])
    special = [*FAIRSEQ, *added]
    return _subwords(folder / SPM, model, pieces, special, added=added, before=before, after=after)


def _nllb(folder: Path, settings: Mapping[str, Any]) -> Subwords:
    return _fairseq(
        folder, settings, language="eng_Latn", last=bool(settings.get("legacy_behaviour", False))
    )


def _subwords(
    path: Path,
    model: SentencePieceModel,
    pieces: Sequence[tuple[str, float]],
    special: Sequence[str],
    *,
    added: Sequence[str],
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Subwords:
    """A SentencePiece model with other ids, segmented by the tokenizers library, as transformers does.

    Args:
        path: The file of the model.
        model: Its content.
        pieces: Pieces and scores in the order of their ids.
        special: Special tokens.
        added: Tokens with the ids after the pieces.
        before: Special tokens before a text.
        after: Special tokens after a text.
    """
    # what the pre-tokenizer below takes for granted
    if model.bytewise or model.suffix or not model.lead:
        raise WeightsError(
            f"{path}: byte_fallback={model.bytewise}, treat_whitespace_as_suffix={model.suffix}, "
            f"add_dummy_prefix={model.lead}: expected False, False and True"
        )
    # special tokens are never chosen by their score
    pieces = [*pieces, *((name, 0.0) for name in added)]
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise WeightsError(
            f"{path}: two of its pieces, or of the tokens after them, have the same name"
        )
    missing = [name for name in (*before, *after) if name not in ids]
    if missing:
        raise WeightsError(
            f"{path}: there is no piece {missing[0]}, which the tokenizer puts around a text"
        )
    unknown, names = model.pieces[model.types.index(UNKNOWN)], frozenset(special)
    if model.kind == "unigram":
        # scores are log-probabilities, and the library finds the best way through them
        backend = Backend(models.Unigram(pieces, unk_id=ids[unknown]))
    else:
        # SentencePiece stores no merges: they follow from the pieces
        merges = _merges(ids, [piece for piece, _ in pieces if piece not in names])
        backend = Backend(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True))
    # the rules of the model's own file, compiled
    rules = [normalizers.Precompiled(model.rules)] if model.rules else []
    backend.normalizer = normalizers.Sequence(rules)
    # a text begins with a space, and runs of spaces are one, as SentencePiece has it
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    backend.add_special_tokens(
        # not normalised: names are searched in the text as it was given
        [AddedToken(name, special=True, normalized=False) for name in special]
    )
    defined = [AddedToken(name, normalized=False) for name in _of_type(model, DEFINED)]
    backend.add_tokens(defined)
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=[(name, ids[name]) for name in (*before, *after)],
    )
    return Subwords(backend.to_str())


def _merges(ids: Mapping[str, int], pieces: Sequence[str]) -> list[tuple[str, str]]:
    """All merges of two pieces into a third, in the order of the ids of the results."""
    merges = []
    # in the order of ids, in which SentencePiece stores the pieces of BPE: the first merge first
    for piece in pieces:
        for end in range(1, len(piece)):
            left, right = piece[:end], piece[end:]
            # a half that is no piece can never be there to be merged
            if left in ids and right in ids:
                merges.append((left, right))
    return merges


def _m2m(folder: Path, settings: Mapping[str, Any]) -> Pieces:
    """Pieces with the ids of vocab.json, and languages after them (Fan et al. 2020)."""
    vocab = read_vocab(folder / "vocab.json")
    listed = _languages(folder, settings, len(vocab))
    names = [name for name in listed if re.fullmatch(r"__\w+__", name)]
    if not names:
        # old folders list none: the class knows them by language_codes
        usual = M2M_LANGUAGES.get(str(settings.get("language_codes", "m2m100")), "")
        names = [f"__{code}__" for code in usual.split()]
    source = f"__{settings.get('src_lang') or 'en'}__"
    if source not in names:
        raise _unread(folder, f"tokenizer_config.json does not have {source} among its languages")
    languages = {name: len(vocab) + i for i, name in enumerate(names)}
    try:
        return Pieces(
            SentencePieceModel.read(folder / SPM),
            vocab | languages,
            # every text begins with the language of the source
            special={"start": languages[source]},
            first=True,
            languages=names,
        )
    except ValueError as cause:
        raise WeightsError(f"{folder}: {cause}") from cause


def _write_m2m(tokens: Pieces, folder: Path) -> None:
    """Write the files of M2M100Tokenizer."""
    names = sorted(tokens.languages, key=tokens.vocab.__getitem__)
    size = len(tokens.vocab) - len(names)
    # the class of transformers counts them from the last piece on
    if [tokens.vocab[name] for name in names] != list(range(size, len(tokens.vocab))):
        raise WeightsError(
            "the languages do not have the last ids: an M2M-100 folder has them after all pieces"
        )
    atomic_write(folder / SPM, tokens.model.to_bytes())
    config.write({piece: i for piece, i in tokens.vocab.items() if i < size}, folder / "vocab.json")
    source = next((name.strip("_") for name in names if tokens.vocab[name] == tokens.start), None)
    config.write(
        {
            "tokenizer_class": "M2M100Tokenizer",
            "src_lang": source,
            "additional_special_tokens": names,
        },
        folder / "tokenizer_config.json",
    )


def _languages(folder: Path, settings: Mapping[str, Any], size: int) -> list[str]:
    """The special tokens after `size` pieces, in the order of their ids, as the settings of a tokenizer list them."""
    table = settings.get("added_tokens_decoder")
    entries = table.items() if isinstance(table, dict) else ()
    by_id = {}
    for i, token in entries:
        if str(i).isdigit() and int(i) >= size:
            # lower ids are those of pieces, such as <s>
            by_id[int(i)] = str(token["content"])
    if by_id:
        expected = list(range(size, size + len(by_id)))
        if sorted(by_id) != expected:
            # ids follow from the order of the result, which a gap would shift
            raise WeightsError(
                f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has gaps: expected all ids from {size} on"
            )
        return [by_id[i] for i in expected]
    # older files list them without ids, in the order of their ids
    listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or ()
    names = [token["content"] if isinstance(token, dict) else token for token in listed]
    return [str(name) for name in names if name not in FAIRSEQ]


def _unread(folder: Path, problem: str) -> WeightsError:
    return WeightsError(
        f"{folder}: {problem}: expected a tokenizer.json, which transformers writes for most tokenizers: "
        "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    )


# Class of tokenizers in transformers: how its files are read.
BYTE_PAIRS = ("vocab.json", "merges.txt")
SCHEMES = {
    "GPT2Tokenizer": Scheme(BYTE_PAIRS, lambda folder, given: read_byte_pairs(folder)),
    "RobertaTokenizer": Scheme(BYTE_PAIRS, _roberta),
    "BartTokenizer": Scheme(BYTE_PAIRS, _roberta),
    "T5Tokenizer": Scheme((T5_SPM,), _t5),
    "XLMRobertaTokenizer": Scheme((SPM,), _fairseq),
    "MBartTokenizer": Scheme((SPM,), partial(_fairseq, language="en_XX", last=True)),
    "MBart50Tokenizer": Scheme((SPM,), partial(_fairseq, language="en_XX")),
    "M2M100Tokenizer": Scheme((SPM, "vocab.json"), _m2m),
    "NllbTokenizer": Scheme((SPM,), _nllb),
}
# Classes whose files `read_subwords` reads, or that may have any; None: no class is named.
GENERAL = frozenset({
    *SCHEMES, "BertTokenizer", "DistilBertTokenizer", "LlamaTokenizer", "PreTrainedTokenizer", "TokenizersBackend",
    "None",
})  # fmt: skip
