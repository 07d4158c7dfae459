"""How the folders of others read text, in the files that they have had over the years.

tokenizer.json                  subwords of any kind, whole
vocab.json and merges.txt       GPT-2's byte pairs
vocab.txt                       BERT's pieces of words, one a line
tokenizer.model                 a SentencePiece model
tokenizer_config.json, special_tokens_map.json    which tokens are special; chat_template.jinja    how people talk to it
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from .. import config
from ..atomic_files import atomic_write
from ..tokens import Pair, Pieces, Subwords, Tokenizer
from ..tokens.sentencepiece import Model
from .bundle import Special
from .fill import WeightsError

CHAT = "chat_template.jinja"
FILES = (
    "tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "source.spm", "target.spm",
    "target_vocab.json", "tokenizer_config.json", "special_tokens_map.json",
)  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's table."""
    return dict(config.load(path))


def special_words(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json and special_tokens_map.json say; a token is its text."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            found |= config.load(folder / name)
    return {
        name: value["content"] if isinstance(value, dict) and isinstance(value.get("content"), str) else value
        for name, value in found.items()
    }


def chat_template(folder: Path) -> str | None:
    """The text of the template by which a conversation becomes a text, where there is one."""
    if (folder / CHAT).is_file():
        return (folder / CHAT).read_text(encoding="utf-8")
    found = special_words(folder).get("chat_template")
    if isinstance(found, list):  # several, by their names
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def subwords(folder: Path) -> Subwords | Pieces | None:
    """How a folder reads text; None where it does not say."""
    if (folder / "tokenizer.json").is_file():
        return Subwords.read(folder / "tokenizer.json")
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return byte_pairs(folder)
    if (folder / "vocab.txt").is_file():
        return word_pieces(folder)
    if (folder / "tokenizer.model").is_file():
        return sentence_pieces(folder)
    return None


def folder_tokens(folder: Path, theirs: Any) -> Subwords | Pieces | None:
    """The same, for a family's table."""
    return subwords(folder)


def byte_pairs(folder: Path) -> Subwords:
    """GPT-2's: pairs of bytes, in the order of their joining."""
    vocab, lines = read_json(folder / "vocab.json"), (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not (number == 1 and line.startswith("#")):
            parts = line.rstrip("\r").split(" ")
            if len(parts) != 2 or any(part not in vocab for part in (*parts, "".join(parts))):
                raise WeightsError(f"{folder / 'merges.txt'}:{number}: {line!r}: expected two tokens that make a third")
            merges.append((parts[0], parts[1]))
    made = Backend(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    words = special_words(folder)
    special = [words.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")] + ["<|endoftext|>"]
    made.add_special_tokens([word for word in dict.fromkeys(special) if isinstance(word, str) and word in vocab])
    return Subwords(made.to_str())


def word_pieces(folder: Path) -> Subwords:
    """BERT's (Devlin et al. 2019): a word is cut into the longest pieces that are known, from its beginning."""
    path, words = folder / "vocab.txt", special_words(folder)
    lines = path.read_text(encoding="utf-8").split("\n")
    lines = [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]
    vocab = {line: i for i, line in enumerate(lines)}
    named = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    named = {name: words.get(f"{name}_token") or usual for name, usual in named.items()}
    for name in ("unk", "cls", "sep"):
        if named[name] not in vocab:
            raise WeightsError(f"{path}: there is no {named[name]}, which every text has around it")
    lower = bool(words.get("do_lower_case", True))
    made = Backend(models.WordPiece(vocab, unk_token=named["unk"], max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(words.get("tokenize_chinese_chars", True)),
        strip_accents=words.get("strip_accents"),
        lowercase=lower,
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.add_special_tokens([AddedToken(word, special=True) for word in named.values() if word in vocab])
    cls, sep = ((named[name], vocab[named[name]]) for name in ("cls", "sep"))
    made.post_processor = processors.BertProcessing(sep, cls)
    return Subwords(made.to_str())


def sentence_pieces(folder: Path) -> Pieces:
    """The pieces of a SentencePiece model by its own numbers (Llama's)."""
    words = special_words(folder)
    model = Model.read(folder / "tokenizer.model")
    return Pieces(model, first=bool(words.get("add_bos_token", True)))


def write_subwords(tokens: Tokenizer | Pair, folder: Path, special: Special) -> None:
    """Write what AutoTokenizer reads."""
    if not isinstance(tokens, Subwords | Pieces):
        raise WeightsError(f"{tokens!r}: a Hugging Face folder has subwords")
    ids = {
        "pad_token": tokens.pad if special.pad is None else special.pad, "unk_token": tokens.unknown,
        "bos_token": tokens.start if special.start is None else special.start,
        "eos_token": special.ends[0] if special.ends else tokens.end,
    }  # fmt: skip
    said = {word: tokens.pieces([i])[0] for word, i in ids.items() if i is not None and i < len(tokens)}
    if isinstance(tokens, Subwords):
        atomic_write(folder / "tokenizer.json", tokens.to_str().encode())
        kind = "PreTrainedTokenizerFast"
    else:
        atomic_write(folder / "tokenizer.model", tokens.model.to_bytes())
        kind = "LlamaTokenizer"
    config.write({"tokenizer_class": kind, **said}, folder / "tokenizer_config.json")


def remove(folder: Path) -> None:
    """Take the files of tokens out of a folder."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def write_chat(template: str | None, folder: Path) -> None:
    """Write a chat template, or take away another model's."""
    if template is None:
        (folder / CHAT).unlink(missing_ok=True)
    else:
        atomic_write(folder / CHAT, template.encode())
