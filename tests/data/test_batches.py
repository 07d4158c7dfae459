"""Laws of all data: batches are functions of (seed, step), parts make up the whole, validation has no seed."""

import hashlib
import io
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clearhead import data
from clearhead.config import ConfigError
from clearhead.data.batching import Buckets
from clearhead.data.text.labelled import Labelled
from clearhead.data.text.masked import Masked
from clearhead.tokens import Words, save


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefgh \n"))
    (path / "shakespeare.txt").write_text("".join(rng.choice(letters, 5000)) + "\n\nThe end\n\nof it")
    data.write_tokens(path / "x.bin", [rng.integers(0, 50, n) for n in rng.integers(0, 40, 30)], vocab=50)
    words = ["".join(rng.choice(letters[:8], n)) for n in rng.integers(1, 12, 200)]
    (path / "p.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(words[::2], words[1::2], strict=True)))
    (path / "multi30k").mkdir()
    for split, n in (("train", 60), ("val", 9)):
        for language in ("en", "de"):
            lines = [" ".join(rng.choice(words, k)) for k in rng.integers(1, 6, n)]
            (path / "multi30k" / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    (path / "tatoeba").mkdir()
    (path / "tatoeba" / "fra.txt").write_text((path / "p.tsv").read_text())
    (path / "tatoeba" / "deu.txt").write_text((path / "p.tsv").read_text())
    (path / "sst2").mkdir()
    for part, n in (("train", 70), ("dev", 11)):
        rows = [f"{' '.join(rng.choice(words, k))}\t{k % 2}\n" for k in rng.integers(1, 6, n)]
        (path / "sst2" / f"{part}.tsv").write_text("".join(rows))
    for i in range(23):
        (path / "pics" / f"class {i % 3}").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (9 + i % 4, 11, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / "pics" / f"class {i % 3}" / f"{i}.png")
    (path / "a.txt").write_text("".join(rng.choice(letters, 900)))
    save(Words(sorted({*words, "Q", "A"})), path / "chatty")
    (path / "chatty" / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ 'Q ' if m.role == 'user' else 'A ' }}{{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}A {% endif %}"
    )
    chats = [{"prompt": " ".join(rng.choice(words, k)), "answer": words[k]} for k in rng.integers(1, 6, 40)]
    (path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    (path / "cifar10").mkdir()
    (np.arange(28) % 10).astype(np.uint8).tofile(path / "cifar10" / "labels.u8")
    for name, tiles in (("train_00", 20), ("test_00", 8)):
        mosaic = Image.fromarray(rng.integers(0, 255, (64, 16 * tiles, 3), dtype=np.uint8))
        mosaic.save(path / "cifar10" / f"{name}.webp", lossless=True)
    for name in ("mnist", "fashion-mnist"):
        (path / name).mkdir()
        for part, count in (("train", 20), ("t10k", 8)):
            pixels = rng.integers(0, 256, (count, 9, 9), dtype=np.uint8)
            for kind, array in (("images-idx3", pixels), ("labels-idx1", (np.arange(count) % 10).astype(np.uint8))):
                sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
                content = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
                (path / name / f"{part}-{kind}-ubyte").write_bytes(content)
    for i in range(24):
        folder = path / "imagenette2-160" / ("val" if i > 17 else "train") / f"n0{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (12, 15, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    home, names = path / "flickr8k", [f"{i}_x.jpg" for i in range(8)]
    home.mkdir()
    with zipfile.ZipFile(home / "images-192.zip", "w") as archive:
        for name in names:
            file = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (12, 15, 3), dtype=np.uint8)).save(file, "PNG")
            archive.writestr(name.replace(".jpg", ".webp"), file.getvalue())
    lines = [f"{name}#{k}\t{' '.join(rng.choice(words, k + 1))} .\n" for name in names for k in range(5)]
    (home / "Flickr8k.token.txt").write_text("".join(lines))
    for part, own in {"train": names[:5], "dev": names[5:7], "test": names[7:]}.items():
        (home / f"Flickr_8k.{part}Images.txt").write_text("".join(f"{name}\n" for name in own))
    return path


KINDS = {
    "reverse": {"rows": 7, "length": (2, 5), "valid_rows": 5},
    "copy": {"rows": 7, "length": 4, "valid_length": (6, 9)},
    "most": {"rows": 7, "length": (1, 6), "symbols": 4},
    "recall": {"rows": 7, "length": (3, 6)},
    "identity": {"rows": 7, "width": 5, "valid_rows": 3},
    "gaussians": {"rows": 7, "modes": 5, "valid_rows": 3},
    "shakespeare": {"rows": 7, "context": 11, "valid_rows": 5, "documents": True},
    "everyday": {"rows": 7, "context": 11, "valid_rows": 5, "size": 300, "documents": True},
    "text": {"path": "a.txt", "rows": 7, "context": 11, "valid_rows": 5},
    "tokens": {"path": "x.bin", "rows": 7, "context": 11, "valid_rows": 5, "documents": True},
    "chats": {"path": "chats.jsonl", "tokens": "chatty", "batch_tokens": 100, "longest": 40, "share": 0.3},
    "pairs": {"path": "p.tsv", "batch_tokens": 100, "rounding": 4, "share": 0.2},
    "multi30k": {"batch_tokens": 100, "size": 300, "vocabulary": "subwords"},
    "tatoeba": {"batch_tokens": 60, "valid_share": 0.2, "vocabulary": "characters", "source": "fr", "target": "en"},
    "translations": {"of": ["multi30k", "tatoeba", "p.tsv"], "batch_tokens": 100, "vocabulary": "words"},
    "masked": {"of": ["a.txt", "sst2"], "batch_tokens": 150, "longest": 30, "vocabulary": "characters"},
    "sst2": {"batch_tokens": 100, "longest": 20, "vocabulary": "words"},
    "labelled": {"path": "sst2/train.tsv", "batch_tokens": 100, "longest": 20, "size": 300, "share": 0.3},
    "cifar10": {"rows": 7, "valid_rows": 5},
    "mnist": {"rows": 7, "valid_rows": 5},
    "fashion-mnist": {"rows": 7, "valid_rows": 5, "held_out": 6},
    "imagenette": {"rows": 7, "size": 8, "valid_rows": 5},
    "scenes": {"rows": 7, "pixels": 24, "valid_rows": 5, "valid_batches": 2},
    "flickr8k": {"rows": 7, "pixels": 24, "minimum": 1},
    "images": {"path": "pics", "rows": 7, "size": 8, "valid_rows": 5, "share": 0.3},
}


def make(name, folder, seed=3):
    return data.make_data(name, KINDS[name], seed=seed, root=folder)


def digest(batch) -> str:
    whole = hashlib.sha256()
    for key in sorted(batch):
        whole.update(
            f"{key} {batch[key].dtype} {batch[key].shape}".encode() + np.ascontiguousarray(batch[key]).tobytes()
        )
    return whole.hexdigest()


def test_every_data_set_is_tested_here():
    assert set(KINDS) == set(data.names())
    assert all(data.names().values())
    for name in KINDS:
        assert data.data_config(name).__dataclass_params__.frozen


def test_unknown_names_and_options_raise_with_the_nearest_ones():
    with pytest.raises(ConfigError, match=r"no data 'shakespear': expected one of .*; the nearest is shakespeare"):
        data.data_config("shakespear")
    with pytest.raises(ConfigError, match="no data 'q': expected one of reverse, copy"):
        data.make_data("q", {}, seed=0)
    with pytest.raises(ConfigError, match="symbols"):
        data.make_data("copy", {"symbol": 3}, seed=0)


def all_batches(source):
    """The batches of two epochs, or of some steps where examples are endless, and all validation batches."""
    yield from map(source.batch, range(2 * (source.steps_per_epoch or 5)))
    yield from map(source.valid, range(source.valid_batches))


@pytest.mark.parametrize("name", KINDS)
def test_every_batch_has_exactly_the_keys_of_its_data(name, folder):
    source = make(name, folder)
    for batch in all_batches(source):
        assert set(batch) == set(source.keys)
    filled_up = source.batch(0, 0, len(source.batch(0)[source.keys[0]]) + 1)  # more parts than rows
    assert set(filled_up) == set(source.keys) | ({"weight"} if "targets" not in source.keys else set())
    source.close()


@pytest.mark.parametrize("name", KINDS)
def test_no_row_is_wider_than_longest(name, folder):
    source = make(name, folder)
    widths = [batch[key].shape[1] for batch in all_batches(source) for key in ("ids", "source") if key in source.keys]
    if source.longest is None:
        assert not widths
    elif isinstance(source, Masked | Labelled):  # theirs is an option, so that it does not depend on the texts
        assert max(widths) <= source.longest
    else:
        assert max(widths) == source.longest
    source.close()


@pytest.mark.parametrize("rounding", [1, 8, 100])
@pytest.mark.parametrize("longest", [30, 32])
def test_padding_stops_at_the_longest_row(longest, rounding, folder):
    options = {"of": "a.txt", "batch_tokens": 60, "longest": longest, "rounding": rounding, "vocabulary": "characters"}
    source = data.make_data("masked", options, seed=0, root=folder)
    assert source.longest == longest
    assert max(batch["ids"].shape[1] for batch in all_batches(source)) == longest  # some line is longer


@pytest.mark.parametrize("name", KINDS)
def test_batches_have_the_documented_types_and_ranges(name, folder):
    source = make(name, folder)
    ids = ("ids", "targets", "source", "lengths", "documents", "at", "labels")
    dtypes = dict.fromkeys(ids, np.int64) | {"x": np.float32, "y": np.float32, "images": np.uint8}
    for batch in (source.batch(0), source.valid(0)):
        assert len({len(value) for value in batch.values()}) == 1
        for key, value in batch.items():
            assert value.dtype == dtypes[key]
            assert value.flags.c_contiguous  # the bits of a sum depend on the order in memory
        if "ids" in batch:
            check_ids(source, batch)
        if "labels" in batch:
            assert source.sizes["classes"] == len(source.classes)
            assert 0 <= batch["labels"].min() <= batch["labels"].max() < source.sizes["classes"]
        if "x" in batch:
            assert batch["x"].shape == (len(batch["x"]), source.sizes["width"])
    source.close()


def check_ids(source, batch):
    """Ids, targets and lengths are in their ranges."""
    vocab = source.sizes.get("target_vocab", source.sizes["vocab"])
    assert 0 <= batch["ids"].min() <= batch["ids"].max() < vocab
    if "targets" in batch:
        assert batch["targets"].shape == batch["ids"].shape
        counted = batch["targets"][batch["targets"] != data.IGNORE]
        assert counted.size
        assert 0 <= counted.min() <= counted.max() < vocab
    if "source" in batch:
        assert 0 <= batch["source"].min() <= batch["source"].max() < source.sizes["vocab"]
    elif source.tokens is not None:
        assert len(source.tokens) <= vocab
    if "lengths" in batch:
        read = batch["source" if "source" in batch else "ids"]
        assert batch["lengths"].shape == read.shape[:1]
        assert 1 <= batch["lengths"].min() <= batch["lengths"].max() <= read.shape[1]
    for key in ("documents", "at"):
        if key in batch:
            assert batch[key].shape == batch["ids"].shape
            assert (batch[key][:, 0] == 0).all()


@pytest.mark.parametrize("name", KINDS)
def test_batches_are_counted_in_the_unit_of_their_data(name, folder):
    source = make(name, folder)
    batch = source.batch(0)
    if source.unit == "tokens":
        assert source.units(batch) == batch["ids"].size
    else:
        assert source.unit == ("images" if "images" in batch else "vectors")
        assert source.units(batch) == len(batch[source.keys[0]])
    source.close()


def test_only_translations_leave_the_context_to_the_model(folder):
    free = {name for name in KINDS if not make(name, folder).sets_context}
    assert free == {"multi30k", "tatoeba", "translations"}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 10])
def test_the_parts_of_a_batch_make_up_the_whole(name, parts, folder):
    source = make(name, folder)
    for ask in (lambda *a: source.batch(5, *a), lambda *a: source.valid(source.valid_batches - 1, *a)):
        whole = ask()
        shares = [ask(part, parts) for part in range(parts)]
        total = len(next(iter(whole.values())))
        for key in whole:
            assert len({share[key].shape for share in shares}) == 1  # equal shapes, so that no worker waits for another
            together = np.stack([share[key] for share in shares], axis=1).reshape(-1, *whole[key].shape[1:])
            assert np.array_equal(together[:total], whole[key])
            if key == "targets":
                assert (together[total:] == data.IGNORE).all()
        assert all(("weight" in share) == ("targets" not in whole and total % parts > 0) for share in shares)
        if "weight" in shares[0]:
            weight = np.stack([share["weight"] for share in shares], axis=1).ravel()
            assert weight.dtype == np.float32
            assert weight.tolist() == [1.0] * total + [0.0] * (len(weight) - total)
    source.close()


@pytest.mark.parametrize("name", KINDS)
def test_changing_a_batch_does_not_change_the_data(name, folder):
    source = make(name, folder)
    before = digest(source.batch(1))
    for value in source.batch(1).values():
        value[...] = 0
    assert digest(source.batch(1)) == before
    source.close()


@pytest.mark.parametrize("name", KINDS)
def test_the_seed_changes_training_and_not_validation(name, folder):
    one, two = make(name, folder, seed=1), make(name, folder, seed=2)
    assert any(digest(one.batch(s)) != digest(two.batch(s)) for s in range(3))
    assert len({digest(one.batch(s)) for s in range(3)}) > 1
    assert [digest(one.valid(i)) for i in range(one.valid_batches)] == [
        digest(two.valid(i)) for i in range(two.valid_batches)
    ]
    zero = make(name, folder, seed=0)
    assert digest(zero.batch(0)) != digest(zero.valid(0))
    for source in (one, two, zero):
        source.close()


def test_a_new_process_without_torch_gives_the_same_bits_in_any_order(folder):
    steps = [9, 0, 4, 1000000, 4]
    code = (
        "import json, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import test_batches as t\n"
        "folder, steps = Path(sys.argv[2]), json.loads(sys.argv[3])\n"
        "out = {n: [t.digest(t.make(n, folder).batch(s)) for s in steps] for n in t.KINDS}\n"
        "assert 'torch' not in sys.modules; print(json.dumps(out))"
    )
    args = [
        sys.executable,
        "-c",
        code,
        str(Path(__file__).parent),
        str(folder),
        json.dumps(steps),
    ]
    fresh = json.loads(subprocess.run(args, capture_output=True, text=True, check=True).stdout)
    for name in KINDS:
        source = make(name, folder)
        ours = {step: digest(source.batch(step)) for step in sorted(set(steps))}
        assert fresh[name] == [ours[step] for step in steps], name
        source.close()


def test_steps_parts_and_indices_out_of_range_raise(folder):
    source = make("copy", folder)
    with pytest.raises(ValueError, match="steps are counted from 0"):
        source.batch(-1)
    with pytest.raises(ValueError, match="part=2 of parts=2"):
        source.batch(0, 2, 2)
    with pytest.raises(IndexError, match="validation batch 8: there are 8"):
        source.valid(8)


@pytest.mark.parametrize("name", ["reverse", "copy", "most", "recall", "identity", "shakespeare"])
def test_batches_are_fast(name, folder):
    size = {"identity": {"width": 256}, "shakespeare": {"context": 256, "documents": True}}.get(name, {"length": 128})
    source = data.make_data(name, {"rows": 64, **size}, seed=0, root=folder)
    times = []
    for step in range(30):
        started = time.perf_counter()
        source.batch(step)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.003  # generous: shape and type checks run in tests


def test_buckets_contain_every_row_once_within_batch_tokens():
    rng = np.random.default_rng(0)
    for rounding in (1, 8):
        lengths = rng.integers(1, 60, 500)
        buckets = Buckets(lengths, 100, rounding)
        for shuffle in (None, rng.permutation(500)):
            order = buckets.order(shuffle)
            assert np.array_equal(np.sort(order), np.arange(500))
            for start, end, width in zip(buckets.starts, buckets.ends, buckets.batch_widths, strict=True):
                assert end > start
                assert lengths[order[start:end]].max() <= width
                assert (end - start) * width <= 100
        assert buckets.starts[0] == 0
        assert buckets.ends[-1] == 500
    assert len(Buckets(np.array([100, 100, 99]), 100, 64)) == 3
    with pytest.raises(ValueError, match="101 tokens does not fit into batch_tokens=100"):
        Buckets(np.array([5, 101]), 100)
