"""The tokenizer files of Hugging Face folders, in all formats that have been in use.

tokenizer.json                  a whole tokenizer of any kind
vocab.json and merges.txt       GPT-2's byte-pair encoding
vocab.txt                       BERT's WordPiece, one token per line
tokenizer.model                 a SentencePiece model
spiece.model, sentencepiece.bpe.model    see tokenizer_classes.py
tokenizer_config.json, special_tokens_map.json    settings, and which tokens are special
chat_template.jinja             the Jinja template that turns a conversation into one text
"""

from __future__ import annotations

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
from ...tokens.sentencepiece import SentencePieceModel
from ...tokens.special import Special, first_known, tokenizer_settings
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
        # it is complete: files of older formats beside it are not needed
        return Subwords.read(folder / "tokenizer.json")
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return read_byte_pairs(folder)
    if (folder / "vocab.txt").is_file():
        return _read_word_pieces(folder)
    if (folder / "tokenizer.model").is_file():
        settings = tokenizer_settings(folder)
        # Llama's class adds a BOS and no EOS, unless the settings say otherwise
        first, last = (
            bool(settings.get(f"add_{name}_token", name == "bos")) for name in ("bos", "eos")
        )
        return Pieces(SentencePieceModel.read(folder / "tokenizer.model"), first=first, last=last)
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
        # the class that opens any tokenizer.json
        class_name = "PreTrainedTokenizerFast"
    else:
        atomic_write(folder / "tokenizer.model", tokens.model.to_bytes())
        # the class for SentencePiece models
        class_name, around = "LlamaTokenizer", tokens.wrapped("").tolist()
        # what is put around a text is all that an empty one becomes
        settings = {
            "add_bos_token": around[:1] == [tokens.start],
            "add_eos_token": around[-1:] == [tokens.end],
        }
    names = _special_names(tokens, special)
    config.write(
        {"tokenizer_class": class_name, **names, **settings}, folder / "tokenizer_config.json"
    )


def ended(tokens: Subwords) -> Subwords:
    """The same tokenizer with EOS after every text, as the source of a translator needs it."""
    # a second EOS would be read as text
    if tokens.end is None or tokens.end in tokens.wrapped(""):
        return tokens
    backend = Backend.from_str(tokens.to_str())
    name = backend.id_to_token(tokens.end)
    last = processors.TemplateProcessing(
        single=f"$A {name}", pair=f"$A $B {name}", special_tokens=[(name, tokens.end)]
    )
    steps = [last]
    if backend.post_processor is not None:
        # after what the tokenizer itself puts around a text
        steps.insert(0, backend.post_processor)
    backend.post_processor = processors.Sequence(steps)
    return Subwords(backend.to_str())


def between(tokens: Tokenizer) -> Tokenizer:
    """The same tokenizer with BOS before and EOS after every text, as an encoder needs it (`with_special`)."""
    # what an encoder here reads around an empty text
    around = with_special(tokens, np.zeros(0, np.int64)).tolist()
    if tokens.wrapped("").tolist() == around:
        # it already adds both
        return tokens
    if isinstance(tokens, Pieces):
        special = {name: i for name in NAMES if (i := getattr(tokens, name)) is not None}
        return Pieces(tokens.model, special=special, first=True, last=True)
    if not isinstance(tokens, Subwords):
        # other kinds are refused when the folder is written
        return tokens
    backend = Backend.from_str(tokens.to_str())
    names = [None if i is None else backend.id_to_token(i) for i in (tokens.start, tokens.end)]
    before, after = ([] if name is None else [name] for name in names)
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        # in a pair the second text has the token type 1
        pair=[*before, "$A", *after, "$B:1", *(f"{name}:1" for name in after)],
        special_tokens=[(name, backend.token_to_id(name)) for name in (*before, *after)],
    )
    return Subwords(backend.to_str())


def with_mask(tokens: Tokenizer, vocab: int) -> Tokenizer:
    """The same tokenizer with a mask token, if the model has an id for it right after the tokenizer's last.

    Args:
        tokens: The tokenizer.
        vocab: The number of ids of the model.
    """
    if not isinstance(tokens, Subwords):
        return tokens
    has_mask = mask_of(tokens)[1] == len(tokens)  # else it would be one more
    if has_mask or vocab <= len(tokens):
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
    masks = [i for name, i in tokens.special_names.items() if name in MASKS]
    ids = {
        "pad_token": first_known(special.pad, tokens.pad),
        "unk_token": tokens.unknown,
        "bos_token": first_known(special.start, tokens.start),
        "eos_token": first_known(special.end, tokens.end),
        "mask_token": first_known(*masks),
    }
    if tokens.wrapped("").tolist() == [tokens.start, tokens.end]:
        # BERT's names for the same two tokens
        ids |= {"cls_token": tokens.start, "sep_token": tokens.end}
    known = {key: i for key, i in ids.items() if i is not None and i < len(tokens)}
    return {key: tokens.pieces([i])[0] for key, i in known.items()}


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
        # GPT-2's file begins with #version: 0.2
        is_version = number == 1 and line.startswith("#")
        if is_version or not line.strip():
            continue
        # two tokens, whose concatenation must be a token as well
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
    named = [settings.get(f"{name}_token") for name in ("bos", "eos", "unk", "pad")]
    # those that the settings name, and GPT-2's own
    special = dict.fromkeys([*named, "<|endoftext|>"])
    backend.add_special_tokens(
        [name for name in special if isinstance(name, str) and name in vocab]
    )
    return Subwords(backend.to_str())


def _read_word_pieces(folder: Path) -> Subwords:
    """BERT's WordPiece (Devlin et al. 2019): a word is split greedily into the longest known pieces."""
    path, settings = folder / "vocab.txt", tokenizer_settings(folder)
    lines = _read_text(path).split("\n")
    if not lines[-1]:
        # the last line break ends the file, and is no token
        lines.pop()
    vocab = {line.rstrip("\r"): i for i, line in enumerate(lines)}
    # a folder may name its special tokens otherwise
    usual = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    special = {name: str(settings.get(f"{name}_token") or token) for name, token in usual.items()}
    # without [PAD] and [MASK] a text can be encoded, without these not
    for name in ("unk", "cls", "sep"):
        if special[name] not in vocab:
            raise WeightsError(
                f"{path}: there is no {special[name]} token, which the tokenizer needs"
            )
    backend = Backend(
        models.WordPiece(vocab, unk_token=special["unk"], max_input_chars_per_word=100)
    )
    strip_accents = settings.get("strip_accents")
    if strip_accents is not None:
        strip_accents = bool(strip_accents)
    # the defaults are those of BERT's own code
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        # None: with lowercase accents go, without it they stay
        strip_accents=strip_accents,
        lowercase=bool(settings.get("do_lower_case", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens(
        [AddedToken(token, special=True) for token in special.values() if token in vocab]
    )
    # [CLS] text [SEP]
    cls, sep = ((special[name], vocab[special[name]]) for name in ("cls", "sep"))
    backend.post_processor = processors.BertProcessing(sep, cls)
    return Subwords(backend.to_str())


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as cause:
        raise WeightsError(f"{path}: is not UTF-8 text ({cause})") from cause
