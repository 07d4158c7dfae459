"""Images with captions: batches, Flickr8k in a data folder, and generated scenes."""

import io
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from clearhead.data import IGNORE, Preprocessing, make_data
from clearhead.data.generated.scenes import COLOURS, RELATIONS, SHAPES
from clearhead.data.images.captions import CaptionConfig, CaptionData, plain_caption, read_flickr8k

TRAIN = [["a dog", "a brown dog runs"], ["two cats"], ["a man on a very long road"]]
VALID = [["a cat"], ["a dog runs"]]


def data(**options):
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 4, 4), np.uint8)
    config = CaptionConfig(vocabulary="words", minimum=1, **{"rows": 2, **options})
    return CaptionData(config, images, TRAIN, VALID, Preprocessing(), seed=3)


def texts(captions, batch):
    """(value of the image's pixels, caption) of each row."""
    rows = [captions.tokens.decode(row[row != IGNORE][:-1]) for row in batch["targets"]]
    return list(zip(batch["images"][:, 0, 0, 0].tolist(), rows, strict=True))


def test_an_epoch_has_every_caption_once_with_its_own_image():
    captions = data(rows=1)
    seen = sorted(pair for step in range(4) for pair in texts(captions, captions.batch(step)))
    assert seen == sorted((i, text) for i, own in enumerate(TRAIN) for text in own)
    assert captions.steps_per_epoch == 4
    orders = [[texts(captions, captions.batch(4 * epoch + i))[0] for i in range(4)] for epoch in (0, 1, 2)]
    assert len({tuple(order) for order in orders}) > 1


def test_one_caption_of_each_image_is_drawn_anew_in_every_epoch():
    captions = data(rows=3, each="one")
    assert captions.steps_per_epoch == 1
    epochs = [dict(texts(captions, captions.batch(step))) for step in range(12)]
    assert all(epoch.keys() == {0, 1, 2} for epoch in epochs)
    assert {epoch[0] for epoch in epochs} == set(TRAIN[0])


def test_ids_are_the_targets_one_token_later():
    captions = data(rows=4)
    batch = captions.batch(0)
    assert batch["ids"].shape == batch["targets"].shape == (4, captions.longest)
    for ids, targets in zip(batch["ids"], batch["targets"], strict=True):
        n = int((targets != IGNORE).sum())
        assert ids[0] == captions.tokens.start
        assert targets[n - 1] == captions.tokens.end
        assert ids[1:n].tolist() == targets[: n - 1].tolist()
        assert (ids[n:] == captions.tokens.pad).all()


def test_long_captions_are_left_out_and_batches_have_one_width():
    captions = data(longest=5)
    assert captions.left_out == 1
    assert captions.batch(0)["ids"].shape == (2, 5)
    assert captions.valid(0)["ids"].shape == (2, 4)
    assert texts(captions, captions.valid(0)) == [(3, "a <unk>"), (4, "a dog runs")]
    with pytest.raises(ValueError, match="rows=9: an epoch has 4 captions"):
        data(rows=9)


def test_row_numbers_are_those_of_the_table():
    captions = data()
    numbers, looked_up = captions.batch(1, lookup=False)["images"], captions.batch(1)["images"]
    np.testing.assert_array_equal(captions.tables["images"][numbers], looked_up)


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "flickr8k"
    home.mkdir()
    names = [f"{i}_x.jpg" for i in range(4)]
    with zipfile.ZipFile(home / "images-192.zip", "w") as archive:
        for i, name in enumerate(names):
            file = io.BytesIO()
            Image.new("RGB", (6, 9), (10 * i, 0, 255)).save(file, "PNG")
            archive.writestr(name.replace(".jpg", ".webp"), file.getvalue())
    lines = [f"{name}#{k}\tA Dog 's no. {i} , number {k} .\n" for i, name in enumerate(names) for k in range(5)]
    (home / "Flickr8k.token.txt").write_text("".join([*lines, "lost.jpg#0\tNo image .\n"]))
    for part, own in {"train": names[:2], "dev": names[2:3], "test": names[3:]}.items():
        (home / f"Flickr_8k.{part}Images.txt").write_text("".join(f"{name}\n" for name in own))
    return tmp_path


def test_flickr8k_reads_its_official_split(folder):
    files = read_flickr8k("test", folder)
    assert files.names == ["3_x.webp"]
    assert files.captions == [[f"A Dog 's no. 3 , number {k} ." for k in range(5)]]
    opened = make_data("flickr8k", {"rows": 4, "minimum": 1, "pixels": 8, "channels": "bgr"}, seed=0, root=folder)
    assert opened.tables["images"].shape == (3, 3, 8, 8)
    assert opened.tables["images"][1, :, 0, 0].tolist() == [255, 0, 10]  # blue first
    assert opened.tokens.decode(opened.validation.batch(np.array([1]))["targets"][0][:-1]).startswith("a dog s no")
    with pytest.raises(ValueError, match=r"split='dev': flickr8k has train, valid, test"):
        read_flickr8k("dev", folder)


def test_an_image_or_caption_that_is_missing_is_named(folder):
    listed = folder / "flickr8k" / "Flickr_8k.devImages.txt"
    listed.write_text("9_x.jpg\n")
    with pytest.raises(ValueError, match=r"9_x\.jpg of Flickr_8k\.devImages\.txt lacks a caption"):
        read_flickr8k("valid", folder)
    listed.write_text("lost.jpg\n")
    with pytest.raises(ValueError, match=r"lost\.jpg .* lacks an image in .*images-192\.zip"):
        read_flickr8k("valid", folder)


def test_without_its_folder_the_message_names_the_files(tmp_path, monkeypatch):
    monkeypatch.delenv("CLEARHEAD_DATA", raising=False)
    with pytest.raises(ValueError, match=r"no Flickr8k in .*Flickr8k\.token\.txt"):
        read_flickr8k("test", tmp_path)


@pytest.mark.skipif(not os.environ.get("CLEARHEAD_DATA"), reason="needs CLEARHEAD_DATA")
def test_the_parts_of_flickr8k_do_not_overlap():
    parts = [read_flickr8k(part).names for part in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [6000, 1000, 1000]
    assert len({name for part in parts for name in part}) == 8000


def test_a_plain_caption_has_words_only():
    assert plain_caption("A man 's T-shirt , don't look ... 2 dogs_run !") == "a man s t-shirt don't look 2 dogs run"


def test_every_scene_shows_what_its_caption_says():
    scenes = make_data("scenes", {"noise": 0.0}, seed=0).scenes(300)
    relations = set()
    for scene in scenes:
        words = scene.caption.split()
        assert len(words) == len(scene.boxes)
        shapes = [(words[i - 1], words[i], scene.boxes[i]) for i in range(len(words)) if words[i] in SHAPES]
        for colour, _, (top, left, bottom, right) in shapes:
            painted = (scene.image == np.array(COLOURS[colour], np.uint8)[:, None, None]).all(0)
            rows, columns = np.nonzero(painted)
            assert painted.sum() > 15
            assert (rows.min() >= top - 1, rows.max() < bottom + 1, columns.min() >= left - 1) == (True,) * 3
            assert columns.max() < right + 1
        if len(shapes) == 1:
            continue
        relation = " ".join(words[3:-3])
        relations.add(relation)
        first, second = (np.array(box) for _, _, box in shapes)  # top, left, bottom, right
        apart = (first[:2] + first[2:]) - (second[:2] + second[2:])  # twice the distance of the centres
        axis = int(abs(apart).argmax())
        assert np.sign(apart[axis]) == RELATIONS[relation][axis]
        assert first[2] - first[0] > 1.2 * (second[2] - second[0])  # the first is the larger one
        assert shapes[0][0] != shapes[1][0]
    assert relations == set(RELATIONS)


def test_scenes_of_validation_depend_neither_on_the_seed_nor_on_the_workers():
    one, two = (make_data("scenes", {"rows": 6, "valid_rows": 6}, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(one.valid(1)["images"], two.valid(1)["images"])
    assert not np.array_equal(one.batch(1)["targets"], two.batch(1)["targets"])
    assert not np.array_equal(one.batch(1)["images"], one.batch(2)["images"])
    whole, half = one.batch(5), one.batch(5, part=1, parts=2)
    for key in ("images", "ids", "targets"):
        np.testing.assert_array_equal(whole[key][1::2], half[key])


def test_a_scene_that_validation_shows_is_not_one_of_training():
    scenes = make_data("scenes", {"valid_rows": 50, "rows": 50}, seed=0)
    seen = {image.tobytes() for step in range(20) for image in scenes.batch(step)["images"]}
    assert not seen & {image.tobytes() for image in scenes.valid(0)["images"]}
