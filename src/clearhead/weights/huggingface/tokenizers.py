"""The tokenizer files of Hugging Face folders, in all formats that have been in use.

tokenizer.json                  a whole tokenizer of any kind
vocab.json and merges.txt       GPT-2's byte-pair encoding
vocab.txt                       BERT's WordPiece, one token per line
tokenizer.model                 a SentencePiece model
spiece.model, sentencepiece.bpe.model    see tokenizer_schemes.py
tokenizer_config.json, special_tokens_map.json    settings, and which tokens are special
chat_template.jinja             the Jinja template that turns a conversation into one text
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from ... import config
from ...atomic_files import atomic_write
from ...data.text.labelled import MASKS, mask_of, with_special
from ...errors import InputError
from ...tokens import Pair, Pieces, Subwords, Tokenizer
from ...tokens.chat_template import CHAT
from ...tokens.ids import NAMES
from ...tokens.marian import read_vocab
from ...tokens.sentencepiece import CONTROL, DEFINED, SPACE, UNKNOWN, Model
from ...tokens.special import Special, tokenizer_settings
from ..fill import WeightsError

FILES = (
    "tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "source.spm", "target.spm",
    "spiece.model", "sentencepiece.bpe.model", "target_vocab.json", "tokenizer_config.json", "special_tokens_map.json",
)  # fmt: skip


def write_chat(template: str | None, folder: Path) -> None:
    """Write a chat template; None removes the one of another model."""
    if template is None:
        (folder / CHAT).unlink(missing_ok=True)
    else:
        atomic_write(folder / CHAT, template.encode())


def read_subwords(folder: Path) -> Subwords | Pieces | None:
    """The tokenizer of a folder, from whichever files it has; None if it has none."""
    if (folder / "tokenizer.json").is_file():
        return Subwords.read(folder / "tokenizer.json")
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return read_byte_pairs(folder)
    if (folder / "vocab.txt").is_file():
        return _read_word_pieces(folder)
    if (folder / "tokenizer.model").is_file():
        settings = tokenizer_settings(folder)
        first, last = (
            bool(settings.get(f"add_{name}_token", name == "bos")) for name in ("bos", "eos")
        )
        return Pieces(Model.read(folder / "tokenizer.model"), first=first, last=last)
    return None


def folder_tokens(folder: Path, theirs: Any) -> Subwords | Pieces | None:
    """`read_subwords` with the signature of Layout.read_tokens."""
    return read_subwords(folder)


def write_subwords(tokens: Tokenizer | Pair, folder: Path, special: Special) -> None:
    """Write a tokenizer as files that AutoTokenizer reads."""
    if not isinstance(tokens, Subwords | Pieces):
        raise WeightsError(f"{tokens!r}: a Hugging Face folder has subwords")
    settings: dict[str, Any] = {}
    if isinstance(tokens, Subwords):
        atomic_write(folder / "tokenizer.json", tokens.to_str().encode())
        kind = "PreTrainedTokenizerFast"
    else:
        atomic_write(folder / "tokenizer.model", tokens.model.to_bytes())
        kind, around = "LlamaTokenizer", tokens.wrapped("").tolist()
        settings = {
            "add_bos_token": around[:1] == [tokens.start],
            "add_eos_token": around[-1:] == [tokens.end],
        }
    names = _special_names(tokens, special)
    config.write({"tokenizer_class": kind, **names, **settings}, folder / "tokenizer_config.json")


def ended(tokens: Subwords) -> Subwords:
    """The same tokenizer with EOS after every text: what a translator reads, which a Pair adds where it is missing."""
    if tokens.end is None or tokens.end in tokens.wrapped(""):
        return tokens
    backend = Backend.from_str(tokens.to_str())
    name = backend.id_to_token(tokens.end)
    last = processors.TemplateProcessing(
        single=f"$A {name}", pair=f"$A $B {name}", special_tokens=[(name, tokens.end)]
    )
    if backend.post_processor is None:
        before = []
    else:
        before = [backend.post_processor]
    backend.post_processor = processors.Sequence([*before, last])
    return Subwords(backend.to_str())


def between(tokens: Tokenizer) -> Tokenizer:
    """The same tokenizer with BOS before and EOS after every text: what an encoder reads, which `with_special` adds."""
    around = with_special(tokens, np.zeros(0, np.int64)).tolist()
    if tokens.wrapped("").tolist() == around:
        return tokens
    if isinstance(tokens, Pieces):
        special = {name: i for name in NAMES if (i := getattr(tokens, name)) is not None}
        return Pieces(tokens.model, special=special, first=True, last=True)
    if not isinstance(tokens, Subwords):
        return tokens
    backend = Backend.from_str(tokens.to_str())
    first, last = (
        [] if i is None else [(backend.id_to_token(i), i)] for i in (tokens.start, tokens.end)
    )
    before, after = ([name for name, _ in side] for side in (first, last))
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, "$B:1", *(f"{name}:1" for name in after)],
        special_tokens=first + last,
    )
    return Subwords(backend.to_str())


def with_mask(tokens: Tokenizer, vocab: int) -> Tokenizer:
    """The same tokenizer with the mask token of a model that has an id for it after those of the tokenizer.

    Args:
        tokens: The tokenizer.
        vocab: The number of ids of the model.
    """
    if (
        not isinstance(tokens, Subwords)
        or mask_of(tokens)[1] != len(tokens) + 1
        or vocab <= len(tokens)
    ):
        return tokens
    backend = Backend.from_str(tokens.to_str())
    # A mask stands for a word and the space before it.
    backend.add_special_tokens([AddedToken(MASKS[0], lstrip=True, special=True)])
    masked = Subwords(backend.to_str())
    # a vocabulary may have gaps
    if masked.special_names.get(MASKS[0]) == len(tokens):
        return masked
    return tokens


def _special_names(tokens: Tokenizer, special: Special) -> dict[str, str]:
    """The special tokens by their keys in tokenizer_config.json.

    What a tokenizer puts around a text is its cls_token and sep_token if these are its BOS and its EOS.
    """
    ids = {
        "pad_token": tokens.pad if special.pad is None else special.pad,
        "unk_token": tokens.unknown,
        "bos_token": tokens.start if special.start is None else special.start,
        "eos_token": special.ends[0] if special.ends else tokens.end,
        "mask_token": next(
            (tokens.special_names[name] for name in MASKS if name in tokens.special_names), None
        ),
    }
    if tokens.wrapped("").tolist() == [tokens.start, tokens.end]:
        ids |= {"cls_token": tokens.start, "sep_token": tokens.end}
    return {
        key: tokens.pieces([i])[0] for key, i in ids.items() if i is not None and i < len(tokens)
    }


def remove_tokens(folder: Path) -> None:
    """Remove all tokenizer files from a folder."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def byte_pairs(folder: Path, space: bool = False) -> Backend:
    """GPT-2's byte-pair encoding (Radford et al. 2019), without special tokens; `space`: a text begins with a space."""
    try:
        vocab = read_vocab(folder / "vocab.json")
    except InputError as cause:
        raise WeightsError(str(cause)) from cause
    lines = _read_text(folder / "merges.txt").split("\n")
    merges = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not (number == 1 and line.startswith("#")):
            parts = line.rstrip("\r").split(" ")
            if len(parts) != 2 or any(part not in vocab for part in (*parts, "".join(parts))):
                raise WeightsError(
                    f"{folder / 'merges.txt'}:{number}: {line!r}: expected two tokens that make a third"
                )
            merges.append((parts[0], parts[1]))
    backend = Backend(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    backend.decoder = decoders.ByteLevel()
    return backend


def read_byte_pairs(folder: Path) -> Subwords:
    """GPT-2's byte-pair encoding with its special tokens."""
    backend, settings = byte_pairs(folder), tokenizer_settings(folder)
    vocab = backend.get_vocab()
    special = [
        settings.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
    ] + ["<|endoftext|>"]
    backend.add_special_tokens(
        [token for token in dict.fromkeys(special) if isinstance(token, str) and token in vocab]
    )
    return Subwords(backend.to_str())


def _read_word_pieces(folder: Path) -> Subwords:
    """BERT's WordPiece (Devlin et al. 2019): a word is split greedily into the longest known pieces."""
    path, settings = folder / "vocab.txt", tokenizer_settings(folder)
    lines = _read_text(path).split("\n")
    lines = [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]
    vocab = {line: i for i, line in enumerate(lines)}
    usual = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    special = {name: str(settings.get(f"{name}_token") or token) for name, token in usual.items()}
    for name in ("unk", "cls", "sep"):
        if special[name] not in vocab:
            raise WeightsError(
                f"{path}: there is no {special[name]} token, which the tokenizer needs"
            )
    backend = Backend(
        models.WordPiece(vocab, unk_token=special["unk"], max_input_chars_per_word=100)
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=None
        if settings.get("strip_accents") is None
        else bool(settings["strip_accents"]),
        lowercase=bool(settings.get("do_lower_case", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens(
        [AddedToken(token, special=True) for token in special.values() if token in vocab]
    )
    cls, sep = ((special[name], vocab[special[name]]) for name in ("cls", "sep"))
    backend.post_processor = processors.BertProcessing(sep, cls)
    return Subwords(backend.to_str())


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as cause:
        raise WeightsError(f"{path}: is not UTF-8 text ({cause})") from cause


# Tokenizer files that become ids in a way that depends on the model: folders without a tokenizer.json.
#
#     class of transformers            files                                     ids
#     RobertaTokenizer, BartTokenizer  vocab.json, merges.txt                    <s> text </s>
#     GPT2Tokenizer                    vocab.json, merges.txt                    text
#     T5Tokenizer                      spiece.model                              text </s>; sentinels after the pieces
#     XLMRobertaTokenizer              sentencepiece.bpe.model                   <s> text </s>
#     MBartTokenizer                   sentencepiece.bpe.model                   text </s> language
#     MBart50Tokenizer, NllbTokenizer  sentencepiece.bpe.model                   language text </s>
#     M2M100Tokenizer                  sentencepiece.bpe.model, vocab.json       language text </s>
#
# The SentencePiece models of fairseq have <unk>, <s> and </s> first, and their users <s>, <pad>, </s> and <unk>: the
# ids of all other pieces are one higher. Languages and <mask> come after the pieces.


FAIRSEQ, SPM_FIRST = ("<s>", "<pad>", "</s>", "<unk>"), ("<unk>", "<s>", "</s>")
MASK, SENTINELS = "<mask>", 100
SPM, T5_SPM = "sentencepiece.bpe.model", "spiece.model"
# Files of tokenizers, and those of them that `read_subwords` does not read by themselves.
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
        return read_subwords(folder)
    settings = tokenizer_settings(folder)
    named = str(settings.get("tokenizer_class")).removesuffix("Fast")
    present = [name for name in PRESENT if (folder / name).is_file()]
    if present and named not in GENERAL:
        raise _unread(
            folder, f"its tokenizer is a {named}, in {', '.join(present)}, which is not read here"
        )
    for name in (named, *usual):
        if name in SCHEMES and set(SCHEMES[name].files) <= set(present):
            return SCHEMES[name].read(folder, settings)
    unread = [name for name in present if name in UNREAD]
    if (
        unread
        and "tokenizer.model" not in present
        and not {"vocab.json", "merges.txt"} <= set(unread)
    ):
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
    if isinstance(both, Pieces) and both.languages:
        _write_m2m(both, folder)
    else:
        write_subwords(ended(both) if isinstance(both, Subwords) else both, folder, special)


def _roberta(folder: Path, settings: Mapping[str, Any]) -> Subwords:
    """GPT-2's byte pairs with special tokens around a text (Liu et al. 2019, section 4.4)."""
    space = bool(settings.get("add_prefix_space", False))
    backend, vocab = byte_pairs(folder, space), read_vocab(folder / "vocab.json")
    usual = {
        "bos": "<s>",
        "eos": "</s>",
        "sep": "</s>",
        "cls": "<s>",
        "unk": "<unk>",
        "pad": "<pad>",
    }
    special = {name: str(settings.get(f"{name}_token") or token) for name, token in usual.items()}
    for name in ("cls", "sep"):
        if special[name] not in vocab:
            raise WeightsError(
                f"{folder / 'vocab.json'}: there is no {special[name]}, the {name} token"
            )
    backend.add_special_tokens(
        [token for token in dict.fromkeys(special.values()) if token in vocab]
    )
    mask = str(settings.get("mask_token") or MASK)
    backend.add_special_tokens(
        [AddedToken(mask, lstrip=True, special=True)] if mask in vocab else []
    )
    sep, cls = ((special[name], vocab[special[name]]) for name in ("sep", "cls"))
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=space)
    return Subwords(backend.to_str())


def _t5(folder: Path, settings: Mapping[str, Any]) -> Subwords:
    """The model's own ids, and after them the sentinels of masked spans, the last one first (Raffel et al. 2020)."""
    model = Model.read(folder / T5_SPM)
    count = settings.get("extra_ids", SENTINELS)
    if type(count) is not int or count < 0:
        raise WeightsError(
            f"{folder / 'tokenizer_config.json'}: extra_ids is {count!r}: expected a number of tokens"
        )
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(count))]
    pieces = list(zip(model.pieces, model.scores, strict=True))
    special = [
        piece
        for piece, kind in zip(model.pieces, model.types, strict=True)
        if kind in (CONTROL, UNKNOWN)
    ]
    return _subwords(
        folder / T5_SPM, model, pieces, [*special, *sentinels], added=sentinels, after=("</s>",)
    )


def _fairseq(
    folder: Path, settings: Mapping[str, Any], *, language: str | None = None, last: bool = False
) -> Subwords:
    """Ids of fairseq, and <s> or the source's language around a text; `last`: the language comes after </s>."""
    model = Model.read(folder / SPM)
    if model.pieces[:3] != SPM_FIRST:
        raise WeightsError(f"{folder / SPM}: begins with {model.pieces[:3]}: expected {SPM_FIRST}")
    pieces = [
        *((name, 0.0) for name in FAIRSEQ),
        *zip(model.pieces[3:], model.scores[3:], strict=True),
    ]
    added, before, after = [MASK], ["<s>"], ["</s>"]
    if language is not None:
        added, language = (
            _languages(folder, settings, len(pieces)),
            str(settings.get("src_lang") or language),
        )
        if language not in added:
            raise _unread(
                folder, f"tokenizer_config.json does not have {language} among its languages"
            )
        if MASK not in added:
            added = [*added, MASK]
        if last:
            before, after = ([], ["</s>", language])
        else:
            before, after = ([language], ["</s>"])
    return _subwords(
        folder / SPM, model, pieces, [*FAIRSEQ, *added], added=added, before=before, after=after
    )


def _nllb(folder: Path, settings: Mapping[str, Any]) -> Subwords:
    return _fairseq(
        folder, settings, language="eng_Latn", last=bool(settings.get("legacy_behaviour", False))
    )


def _subwords(
    path: Path,
    model: Model,
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
    if model.bytewise or model.suffix or not model.lead:
        raise WeightsError(
            f"{path}: byte_fallback={model.bytewise}, treat_whitespace_as_suffix={model.suffix}, "
            f"add_dummy_prefix={model.lead}: expected False, False and True"
        )
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
        backend = Backend(models.Unigram(pieces, unk_id=ids[unknown]))
    else:
        merges = _merges(ids, [piece for piece, _ in pieces if piece not in names])
        backend = Backend(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(model.rules)] if model.rules else []
    )
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    backend.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in special]
    )
    defined = [
        piece for piece, kind in zip(model.pieces, model.types, strict=True) if kind == DEFINED
    ]
    backend.add_tokens([AddedToken(name, normalized=False) for name in defined])
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=[(name, ids[name]) for name in (*before, *after)],
    )
    return Subwords(backend.to_str())


def _merges(ids: Mapping[str, int], pieces: Sequence[str]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others: an earlier piece is made first."""
    return [
        (piece[:end], piece[end:])
        for piece in pieces
        for end in range(1, len(piece))
        if piece[:end] in ids and piece[end:] in ids
    ]


def _m2m(folder: Path, settings: Mapping[str, Any]) -> Pieces:
    """Pieces with the ids of vocab.json, and languages after them (Fan et al. 2020)."""
    vocab = read_vocab(folder / "vocab.json")
    listed = [
        name for name in _languages(folder, settings, len(vocab)) if re.fullmatch(r"__\w+__", name)
    ]
    usual = M2M_LANGUAGES.get(str(settings.get("language_codes", "m2m100")), "")
    names = listed or [f"__{code}__" for code in usual.split()]
    source = f"__{settings.get('src_lang') or 'en'}__"
    if source not in names:
        raise _unread(folder, f"tokenizer_config.json does not have {source} among its languages")
    languages = {name: len(vocab) + i for i, name in enumerate(names)}
    try:
        return Pieces(
            Model.read(folder / SPM),
            vocab | languages,
            special={"start": languages[source]},
            first=True,
            languages=names,
        )
    except ValueError as cause:
        raise WeightsError(f"{folder}: {cause}") from cause


def _write_m2m(tokens: Pieces, folder: Path) -> None:
    """Write the files of M2M100Tokenizer."""
    names, size = (
        sorted(tokens.languages, key=tokens.vocab.__getitem__),
        len(tokens.vocab) - len(tokens.languages),
    )
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
    by_id = {
        int(i): str(token["content"]) for i, token in entries if str(i).isdigit() and int(i) >= size
    }
    if by_id:
        if sorted(by_id) != list(range(size, size + len(by_id))):
            raise WeightsError(
                f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has gaps: expected all ids from {size} on"
            )
        return [by_id[i] for i in sorted(by_id)]
    listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or ()
    names = [token["content"] if isinstance(token, dict) else token for token in listed]
    return [str(name) for name in names if name not in FAIRSEQ]


def _unread(folder: Path, problem: str) -> WeightsError:
    return WeightsError(
        f"{folder}: {problem}: expected a tokenizer.json, which transformers writes for most tokenizers: "
        "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    )


# Class of tokenizers in transformers: how its files are read.
SCHEMES = {
    "GPT2Tokenizer": Scheme(
        ("vocab.json", "merges.txt"), lambda folder, given: read_byte_pairs(folder)
    ),
    **dict.fromkeys(
        ("RobertaTokenizer", "BartTokenizer"), Scheme(("vocab.json", "merges.txt"), _roberta)
    ),
    "T5Tokenizer": Scheme((T5_SPM,), _t5),
    "XLMRobertaTokenizer": Scheme((SPM,), _fairseq),
    "MBartTokenizer": Scheme(
        (SPM,), lambda folder, given: _fairseq(folder, given, language="en_XX", last=True)
    ),
    "MBart50Tokenizer": Scheme(
        (SPM,), lambda folder, given: _fairseq(folder, given, language="en_XX")
    ),
    "M2M100Tokenizer": Scheme((SPM, "vocab.json"), _m2m),
    "NllbTokenizer": Scheme((SPM,), _nllb),
}
# Classes whose files `read_subwords` reads, or that may have any; None: no class is named.
GENERAL = frozenset({
    *SCHEMES, "BertTokenizer", "DistilBertTokenizer", "LlamaTokenizer", "PreTrainedTokenizer", "TokenizersBackend",
    "None",
})  # fmt: skip
