"""Translations: sources and targets, every pair once per epoch, no sentence in two parts, and bad files."""

import gzip
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from clearhead.config import ConfigError
from clearhead.data import IGNORE, DataError, load_split, make_data
from clearhead.data.text.parallel import place, read_tatoeba
from clearhead.tokens import split

RNG = np.random.default_rng(2)
STOCK = ["dog", "cat", "runs", "blue", "größe", "T-shirt", "l'homme", "two", "on", "grass", "👍🏽", "don't"]


def sentences(n, rng=RNG):
    return [" ".join(rng.choice(STOCK, k)) + str(rng.choice([".", "!", " ?", ""])) for k in rng.integers(1, 9, n)]


EN, DE, FR = sentences(120), ["Hände" + text for text in sentences(120)], sentences(120)
VALID = {language: sentences(21) for language in ("en", "de", "fr")}
KINDS = {
    "subwords": {"vocabulary": "subwords", "size": 300},
    "unigram": {"vocabulary": "unigram", "size": 300},
    "words": {"vocabulary": "words", "minimum": 1},
    "characters": {"vocabulary": "characters"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("translations")
    (path / "multi30k").mkdir()
    for language, lines in (("en", EN), ("de", DE), ("fr", FR)):
        parts = {"train": lines, "val": VALID[language], "test_2016_flickr": lines[:7], "test_2017_flickr": lines[7:12]}
        for part, some in parts.items():
            content = ("\n".join(some) + "\n").encode()
            (path / "multi30k" / f"{part}.{language}.gz").write_bytes(gzip.compress(content))
    (path / "tatoeba").mkdir()
    pairs = [(english, other) for i, english in enumerate(EN) for other in FR[i : i + 3]]
    write(path / "tatoeba" / "fra.txt", pairs)
    write(path / "tatoeba" / "deu.txt", [(a, b, "CC-BY 2.0 (France)") for a, b in zip(EN, DE, strict=True)])
    write(path / "p.tsv", pairs)
    return path


def write(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def multi30k(folder, seed=0, **options):
    return make_data("multi30k", {"batch_tokens": 200, "size": 300, **options}, seed=seed, root=folder)


def decoded(data, batch):
    """The pairs of ids of a batch; padding and special tokens are checked on the way."""
    pad, start, end = data.tokens.target.pad, data.tokens.target.start, data.tokens.target.end
    for source, length, ids, targets in zip(
        *(batch[name].tolist() for name in ("source", "lengths", "ids", "targets")), strict=True
    ):
        assert source[length - 1] == data.tokens.source.end
        assert set(source[length:]) <= {data.tokens.source.pad}
        n = sum(t != IGNORE for t in targets)
        assert IGNORE not in targets[:n]
        assert targets[n - 1] == end
        assert ids[:n] == [start, *targets[: n - 1]]
        assert set(ids[n:]) <= {pad}
        assert end not in ids
        yield tuple(source[: length - 1]), tuple(targets[: n - 1])


def epoch(data, number=0):
    n = data.steps_per_epoch
    return [pair for step in range(number * n, (number + 1) * n) for pair in decoded(data, data.batch(step))]


def encoded(data, pairs):
    read, write = data.tokens.source, data.tokens.target
    return Counter((tuple(read.encode(a).tolist()), tuple(write.encode(b).tolist())) for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joint", [False, True])
def test_every_pair_is_seen_once_per_epoch_within_batch_tokens(folder, kind, joint):
    data = multi30k(folder, joint=joint, **KINDS[kind])
    for number in (0, 1):
        assert Counter(epoch(data, number)) == encoded(data, zip(EN, DE, strict=True))
    for step in range(data.steps_per_epoch):
        batch = data.batch(step)
        assert max(batch["ids"].size, batch["source"].size) <= 200
        assert batch["ids"].shape[1] % 8 == batch["source"].shape[1] % 8 == 0
    valid = [pair for i in range(data.valid_batches) for pair in decoded(data, data.valid(i))]
    assert Counter(valid) == encoded(data, zip(VALID["en"], VALID["de"], strict=True))
    assert data.keys == ("ids", "targets", "source", "lengths")
    assert data.sizes["vocab"] == len(data.tokens.source)
    assert data.tokens.joint == joint
    assert data.sizes.get("target_vocab") == (None if joint else len(data.tokens.target))


@pytest.mark.parametrize("kind", ["subwords", "unigram", "characters"])
def test_ids_decode_to_the_texts(folder, kind):
    data = multi30k(folder, source="fr", target="en", **KINDS[kind])
    pairs = [(data.tokens.source.decode(a), data.tokens.target.decode(b)) for a, b in epoch(data)]
    assert Counter(pairs) == Counter(zip(FR, EN, strict=True))


def test_the_vocabulary_comes_from_the_training_text_alone(folder):
    data = multi30k(folder, vocabulary="words", minimum=1, lower=True)
    seen = {word for line in EN for word in split(line.lower())}
    assert set(data.tokens.source.symbols[4:]) == seen
    assert len(multi30k(folder, vocabulary="words", size=9).tokens.source) == 9


def test_the_vocabulary_does_not_depend_on_the_seed_or_the_process(folder):
    one, two = multi30k(folder, seed=1), multi30k(folder, seed=2)
    assert one.tokens == two.tokens
    assert epoch(one) != epoch(two)
    code = (
        "import sys; from pathlib import Path; from clearhead.data import make_data\n"
        "data = make_data('multi30k', {'batch_tokens': 200, 'size': 300}, seed=1, root=Path(sys.argv[1]))\n"
        "print(data.batch(3)['ids'].tolist(), 'torch' in sys.modules)"
    )
    other = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == f"{one.batch(3)['ids'].tolist()} False"


@pytest.mark.parametrize("kind", KINDS)
def test_neighbouring_sentences_are_joined(folder, kind):
    """Every sentence begins an example of each length, and its ids are those of the joined text."""
    data = multi30k(folder, join_sentences=[2, 3], batch_tokens=1500, **KINDS[kind])
    wanted = [(" ".join(EN[i : i + n]), " ".join(DE[i : i + n])) for n in (2, 3) for i in range(len(EN) - n + 1)]
    assert Counter(epoch(data)) == encoded(data, wanted)
    valid = [pair for i in range(data.valid_batches) for pair in decoded(data, data.valid(i))]
    apart = [
        (" ".join(VALID["en"][i : i + n]), " ".join(VALID["de"][i : i + n]))
        for n in (2, 3)
        for i in range(0, 21 - n + 1, n)
    ]
    assert Counter(valid) == encoded(data, apart)


def test_pairs_longer_than_longest_are_left_out(folder):
    data, whole = multi30k(folder, longest=12), multi30k(folder)
    assert max(max(len(a), len(b)) + 1 for a, b in epoch(data)) <= 12
    assert len(data.training) + len(data.validation) + data.left_out == 141
    assert data.left_out > 0
    assert whole.left_out == 0


def test_tatoeba_is_split_by_the_english_side(folder):
    shares = {"valid_share": 0.2, "test_share": 0.3}
    parts = read_tatoeba("en", "fr", folder, **shares)
    english = {part: {line.source for line in lines} for part, lines in parts.items()}
    assert sum(map(len, parts.values())) == 3 * len(EN) - 3
    assert (
        not english["train"] & english["valid"]
        | english["train"] & english["test"]
        | english["valid"] & english["test"]
    )
    assert all(len(some) > 5 for some in english.values())
    back = read_tatoeba("fr", "en", folder, **shares)
    assert [(line.target, line.source) for line in back["test"]] == [
        (line.source, line.target) for line in parts["test"]
    ]
    data = make_data("tatoeba", {"batch_tokens": 200, "size": 300, **shares}, seed=0, root=folder)
    train = [(line.source, line.target) for line in parts["train"]]
    assert Counter(epoch(data)) == encoded(data, train)
    assert load_split("tatoeba", "test", target="fr", root=folder, **shares)[0] == [x.source for x in parts["test"]]
    more = read_tatoeba("en", "fr", folder, valid_share=0.4, test_share=0.3)
    assert more["test"] == parts["test"]  # the test part does not change with the other shares


def test_the_part_of_a_sentence_depends_on_its_letters_only():
    assert place("Run!") == place("run.") == place(" RUN ")
    assert place("Run!") != place("Ran!")
    assert place("Je la mange.") == 0.7787162758334429  # this must never change
    places = [place(f"sentence {i}") for i in range(2000)]
    assert abs(np.mean(places) - 0.5) < 0.03


def test_several_sets_and_files_are_used_together(folder):
    options = {"of": ["multi30k", "tatoeba", "p.tsv"], "source": "en", "target": "fr", "batch_tokens": 200, "size": 300}
    data = make_data("translations", options | {"valid_share": 0.1}, seed=0, root=folder)
    assert 120 + 300 + 300 < len(data.training) + len(data.validation) <= 120 + 21 + 357 + 357
    found = set(epoch(data))
    assert set(encoded(data, zip(EN, FR, strict=True))) <= found


def test_pairs_that_are_not_joined_are_translations(folder):
    options = {"path": "p.tsv", "join": False, "vocabulary": "words", "minimum": 1, "batch_tokens": 200, "share": 0.2}
    data = make_data("pairs", options, seed=0, root=folder)
    both = epoch(data) + [pair for i in range(data.valid_batches) for pair in decoded(data, data.valid(i))]
    assert Counter(both).total() == 3 * len(EN) - 3
    train = {a for a, _ in epoch(data)}
    assert not train & {a for i in range(data.valid_batches) for a, _ in decoded(data, data.valid(i))}
    assert make_data("pairs", {"path": "p.tsv"}, seed=0, root=folder).keys == ("ids", "targets")
    with pytest.raises(ConfigError, match="vocabulary is for join=false"):
        make_data("pairs", {"path": "p.tsv", "vocabulary": "words"}, seed=0, root=folder)


def test_load_split_returns_plain_text_for_evaluation(folder):
    sources, targets = load_split("multi30k", "test_2016_flickr", source="de", target="en", root=folder)
    assert (sources, targets) == (DE[:7], EN[:7])
    sources, targets = load_split("multi30k", "test_2016_flickr", root=folder, join=3)
    assert sources == [" ".join(EN[0:3]), " ".join(EN[3:6]), EN[6]]
    assert targets[0] == " ".join(DE[0:3])
    for arguments, words in (
        (("multi30k", "test"), "multi30k has no part 'test': expected one of train, valid, test_2016_flickr"),
        (("wmt", "test"), "no set of translations is named 'wmt': expected multi30k or tatoeba"),
        (("tatoeba", "val"), "the nearest is valid"),
    ):
        with pytest.raises(DataError, match=words):
            load_split(*arguments, root=folder)
    with pytest.raises(ValueError, match="join=0"):
        load_split("multi30k", "valid", root=folder, join=0)
    with pytest.raises(DataError, match="multi30k has no 'es': expected one of en, de, fr"):
        load_split("multi30k", "valid", target="es", root=folder)
    with pytest.raises(DataError, match="translations between English and another language, not fr and de"):
        load_split("tatoeba", "test", source="fr", target="de", root=folder)
    with pytest.raises(DataError, match="both 'en'"):
        load_split("multi30k", "valid", target="en", root=folder)


GOOD = b"a dog\ntwo dogs\n"


@pytest.mark.parametrize(
    ("english", "german", "words"),
    [
        (GOOD, b"", r"train\.de is empty"),
        (b"", GOOD, r"train\.en is empty"),
        (GOOD, b"ein Hund\n", r"train\.en has 2 lines and .*train\.de has 1: expected the same number"),
        (GOOD, b"ein Hund\n\n", r"train\.de:2: this line is empty"),
        (b"a dog\n \t \n", GOOD, r"train\.en:2: this line is empty"),
        (b"a dog\ntwo d\xffgs\n", GOOD, r"train\.en:2: column 6: the byte 0xFF is not UTF-8 text"),
        (GOOD, b"\xc3\xa9\n\xc3", r"train\.de:2: column 1: the byte 0xC3 is not UTF-8"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path, english, german, words):
    (tmp_path / "multi30k").mkdir()
    for part in ("train", "val"):
        (tmp_path / "multi30k" / f"{part}.en").write_bytes(english)
        (tmp_path / "multi30k" / f"{part}.de").write_bytes(german)
    with pytest.raises(DataError, match=words):
        multi30k(tmp_path)


def test_odd_characters_are_kept(tmp_path):
    """Control characters, other line ends, emoji, a byte order mark: only a line feed ends a line."""
    english = ["a\x01b\x07", "c\u2028d\x0b", "👩‍👩‍👧 e\x1c", "f"]
    (tmp_path / "multi30k").mkdir()
    for part in ("train", "val"):
        (tmp_path / "multi30k" / f"{part}.en").write_bytes("\ufeff".encode() + "\r\n".join(english).encode())
        (tmp_path / "multi30k" / f"{part}.de").write_bytes("\n".join("wxyz").encode() + b"\n")
    for kind in ("subwords", "characters"):
        data = multi30k(tmp_path, **KINDS[kind])
        found = {data.tokens.source.decode(a): data.tokens.target.decode(b) for a, b in epoch(data)}
        assert found == dict(zip(english, "wxyz", strict=True))


def test_pairs_that_fit_into_no_batch_are_named(folder):
    with pytest.raises(DataError, match=r"train\.en\.gz:\d+: this pair has \d+ tokens: expected batch_tokens=9"):
        multi30k(folder, batch_tokens=9)
    with pytest.raises(DataError, match="longest=2 leaves no pair to train on"):
        multi30k(folder, longest=2, vocabulary="characters")
    with pytest.raises(ConfigError, match="source='de' and target='fr': expected one of them to be 'en'"):
        make_data("tatoeba", {"source": "de", "target": "fr"}, seed=0, root=folder)
    with pytest.raises(ConfigError, match=r"valid_share=0\.6 and test_share=0\.5"):
        make_data("tatoeba", {"valid_share": 0.6, "test_share": 0.5}, seed=0, root=folder)
    with pytest.raises(ConfigError, match="of is empty"):
        make_data("translations", {"of": []}, seed=0, root=folder)
    with pytest.raises(FileNotFoundError, match=r"no\.tsv"):
        make_data("translations", {"of": ["no.tsv"]}, seed=0, root=folder)
