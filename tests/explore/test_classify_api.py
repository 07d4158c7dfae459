"""Images: classes, attention over patches, feature maps and what the model read, all as the library computes them."""

import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from test_images_api import UNUSUAL, WRONG, encoded, send

import clearhead as ch
from clearhead.data import Preprocessing
from clearhead.explore import examples as example_images
from clearhead.explore.app import PAGE, make_app
from clearhead.explore.inspections import image as image_inspection
from clearhead.explore.inspections import inspect_image, reads_images
from clearhead.explore.store import InspectionStore, views, why_no_view
from clearhead.look import statistics
from support.api_shapes import schemas
from support.explorer_calls import events, numbers

HOME = "http://127.0.0.1:8000"
SMALL = {"width": 16, "depth": 3, "heads": 2, "patch": 4, "size": 16}
LABELS = ("cat", "church, church building", "x")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of small vision models with random weights."""
    torch.manual_seed(3)
    root = tmp_path_factory.mktemp("sights")

    def save(name, model, labels=None, **options):
        ch.save(ch.Bundle(model, labels=labels, preprocessing=Preprocessing(**options)), root / name)

    save("vit", ch.build("vit", classes=3, registers=1, **SMALL), LABELS, resize=28, crop=(20, 28))
    save("mean", ch.build("vit", classes=0, pool="mean", **SMALL), resize=(12, 20), channels="bgr")
    save("pooled", ch.build("vit", classes=2, pool="attention", stem="conv", **SMALL), resize=(16, 16))
    cnn = ch.build("resnet", classes=4, width=8, depths=(1, 1), stem="small", attention=(0, 1))
    for stage in cnn.stages:
        torch.nn.init.constant_(stage[1].gamma, 0.7)
    save("cnn", cnn, resize=(9, 15))
    grey = ch.build("convnext", classes=2, channels=1, width=8, depths=(1, 1), patch=2, layer_scale=1.0)
    save("grey", grey, resize=(12, 12), channels="grey", mean=(0.5,), deviation=(0.5,))
    save("mobile", ch.build("mobilenet", classes=2, widths=(8, 8), depths=(1, 1), strides=(1, 2), hidden=16),
         resize=(16, 16))  # fmt: skip
    save("whole", ch.build("resnet", classes=2, width=4, depths=(1,), stem="small"))
    return root


NAMES = ("vit", "mean", "pooled", "cnn", "grey", "mobile", "whole")


@pytest.fixture(scope="module")
def client(folders):
    with TestClient(make_app([folders / name for name in NAMES], device="cpu"), base_url=HOME) as found:
        yield found


def classify(client, model, image="cat"):
    return events(client, "classify", model=model, image=image)[-1]


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """The example "cat" as a file."""
    path = tmp_path_factory.mktemp("photo") / "cat.webp"
    path.write_bytes(example_images.example_file("cat"))
    return path


def watched(bundle, photo, *names):
    with torch.no_grad(), ch.watch(bundle, *names) as tape:
        bundle(str(photo))
    return tape


def test_vision_models_open_in_classify_with_the_example_images(client):
    found = {one["id"]: schemas.ModelLine(**one) for one in client.get("/api/models").json()}
    assert {tuple(found[name].kinds) for name in NAMES} == {("classify",)}
    assert found["vit"].examples[:3] == ["church", "cat", "golf-ball"]  # those whose class it knows first
    assert set(found["mean"].examples) == set(example_images.NAMES)


def test_a_model_without_preprocessing_says_why_no_view_shows_it():
    bundle = ch.Bundle(ch.build("resnet", classes=2, width=4, depths=(1,)))
    assert (views(bundle), reads_images(bundle)) == ([], False)
    assert "without image preprocessing" in why_no_view(bundle)
    with pytest.raises(ValueError, match="expected a vision model with its preprocessing"):
        inspect_image(bundle, example_images.example_file("cat"))


def test_classes_are_those_of_the_library(client, folders, photo):
    for name in ("vit", "pooled", "cnn", "grey", "mobile"):
        want = ch.classify(ch.load(folders / name, device="cpu"), photo)
        found = classify(client, name)["classes"]
        assert [label for label, _ in found] == [label for label, _ in want]
        assert [p for _, p in found] == pytest.approx([p for _, p in want], rel=1e-4)
    assert classify(client, "mean")["classes"] is None


def test_the_image_is_shown_as_the_model_read_it(client, folders, photo):
    for name in NAMES[:-1]:
        look = classify(client, name)["look"]
        answer = client.get("/api/looks/seen", params={"look": look["id"]})
        assert answer.headers["content-type"] == "image/png"
        seen = np.asarray(Image.open(io.BytesIO(answer.content)))
        preprocessing = ch.load(folders / name, device="cpu").preprocessing
        want = preprocessing.pixels(Image.open(photo)).transpose(1, 2, 0)
        if name == "mean":
            want = want[..., ::-1]  # it reads BGR, the page shows RGB
        assert seen.shape == (*look["seen"], 3)
        assert (seen == np.broadcast_to(want, seen.shape)).all()


def test_attention_of_a_vision_transformer(client, folders, photo):
    look = classify(client, "vit")["look"]
    (group,) = look["groups"]
    assert (group["layers"], group["heads"], group["about"]) == (3, 2, "each patch attends to every patch")
    assert group["rows"]["grid"] == [5, 7]  # of 20 x 28 pixels
    assert group["rows"]["special"] == [0, 1]
    assert group["rows"]["names"][:4] == ["class token", "register 0", "row 0, column 0", "row 0, column 1"]
    bundle = ch.load(folders / "vit", device="cpu")
    tape = watched(bundle, photo, "blocks.*.attn.weights")
    asked = {"look": look["id"], "group": "self"}
    for at in (0, 1, 17):
        want = np.stack([tape[f"blocks.{i}.attn.weights"].row(at)[0].numpy() for i in range(3)])
        assert np.allclose(numbers(client, "query", at=at, **asked), want, atol=1e-6)
        row = numbers(client, "row", at=at, layer=2, head=1, **asked)
        assert np.allclose(row, want[2, 1], atol=1e-6)
    lines = [json.loads(line) for line in client.get("/api/looks/heads", params=asked).text.splitlines()]
    for layer, line in enumerate(lines):
        schemas.HeadsOfLayer(**line)
        source = tape[f"blocks.{layer}.attn.weights"].sources[0]
        want = statistics(source, "entropy", "distance", grid=(5, 7), special=2)
        assert line["entropy"] == pytest.approx(want["entropy"].mean((0, 2)).tolist(), rel=1e-4)
        # class token and register have no place: they are left out
        assert line["distance"] == pytest.approx(want["distance"][:, :, 2:].mean((0, 2)).tolist(), rel=1e-4)
        assert max(line["distance"]) < np.hypot(4, 6)


def test_pooling_by_attention_has_one_query(client, folders, photo):
    look = classify(client, "pooled")["look"]
    assert [group["name"] for group in look["groups"]] == ["self", "pool"]
    pool = look["groups"][1]
    assert (pool["rows"]["names"], pool["columns"]["grid"], pool["heads"]) == (["the pooling query"], [4, 4], 1)
    want = watched(ch.load(folders / "pooled", device="cpu"), photo, "pool.weights")["pool.weights"].row(0)[0]
    assert np.allclose(numbers(client, "query", look=look["id"], group="pool", at=0)[0], want, atol=1e-6)
    lines = client.get("/api/looks/heads", params={"look": look["id"], "group": "pool"}).text.splitlines()
    assert len(lines) == 1


def test_attention_inside_a_convolutional_network(client, folders, photo):
    look = classify(client, "cnn")["look"]
    assert [(group["name"], group["rows"]["grid"]) for group in look["groups"]] == [
        ("stage0", [9, 15]), ("stage1", [5, 8])
    ]  # fmt: skip
    assert look["groups"][1]["about"] == "each place attends to every place of the grid after stage 1"
    name = "stages.1.1.attn.weights"
    want = watched(ch.load(folders / "cnn", device="cpu"), photo, name)[name].row(11)[0]
    assert np.allclose(numbers(client, "query", look=look["id"], group="stage1", at=11)[0], want, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("cnn", {"stem": "stem", "stage 0": "stages.0.1", "stage 1": "stages.1.1"}),
        ("grey", {"stem": "stem", "stage 0": "stages.0.0", "stage 1": "stages.1.1"}),
        ("mobile", {"stem": "stem", "stage 0": "stages.0.0", "stage 1": "stages.1.0"}),
        ("vit", {"patch embedding": "embed.project"}),
    ],
)
def test_feature_maps_are_the_outputs_of_the_stages(client, folders, photo, name, want):
    look = classify(client, name)["look"]
    tape = watched(ch.load(folders / name, device="cpu"), photo, *want.values())
    assert [one["name"] for one in look["features"]] == list(want)
    for stage, (shown, address) in enumerate(zip(look["features"], want.values(), strict=True)):
        maps = tape[address][0]
        assert (shown["grid"], sorted(shown["order"])) == (list(maps.shape[1:]), list(range(len(maps))))
        strength = maps.abs().mean((1, 2))[shown["order"]]
        assert (strength[:-1] >= strength[1:] - 1e-6).all()
        found = numbers(client, "features", look=look["id"], stage=stage, channels="3,0,5")
        assert np.allclose(found, maps[[3, 0, 5]], atol=1e-5)


@pytest.mark.parametrize("name", UNUSUAL)
def test_images_of_any_mode_are_classified_as_by_the_library(client, folders, tmp_path, name):
    file = UNUSUAL[name][0]
    (tmp_path / "image").write_bytes(file)
    found = classify(client, "vit", send(client, file).json()["id"])
    want = ch.classify(ch.load(folders / "vit", device="cpu"), tmp_path / "image")
    assert [p for _, p in found["classes"]] == pytest.approx([p for _, p in want], rel=1e-4)


def test_one_pixel_and_a_turned_photograph(client):
    one = send(client, encoded(Image.new("RGB", (1, 1), "red"))).json()["id"]
    assert classify(client, "vit", one)["look"]["seen"] == [20, 28]
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = send(client, encoded(Image.fromarray(pixels), exif=exif)).json()["id"]
    upright = send(client, encoded(Image.fromarray(np.rot90(pixels, -1).copy()))).json()["id"]
    assert classify(client, "vit", turned)["classes"] == classify(client, "vit", upright)["classes"]


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_image_gets_no_id(client, name):
    assert set(send(client, WRONG[name][0]).json()) == {"error"}


def test_a_model_that_reads_images_of_any_size_has_a_limit(client):
    small = send(client, encoded(Image.new("RGB", (31, 17)))).json()["id"]
    assert classify(client, "whole", small)["look"]["seen"] == [17, 31]
    large = send(client, encoded(Image.new("RGB", (1200, 900)))).json()["id"]
    assert "900 x 1200 pixels: expected at most 1,048,576" in classify(client, "whole", large)["error"]


def test_what_is_kept_is_counted(folders):
    inspection, _ = inspect_image(ch.load(folders / "cnn", device="cpu"), example_images.example_file("cat"))
    maps = sum(one.maps.nbytes for one in inspection.features)
    assert inspection.size() > maps > 0
    with pytest.raises(ValueError, match="a smaller image"):
        InspectionStore(memory=maps).keep(inspection)


def test_progress_can_stop_the_work(folders):
    passed = []

    def stop(n, of):
        passed.append((n, of))
        if n == 2:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        inspect_image(ch.load(folders / "vit", device="cpu"), example_images.example_file("cat"), stop)
    assert passed == [(1, 4), (2, 4)]


def test_wrong_requests_are_sentences(client):
    look = classify(client, "vit")["look"]["id"]
    lines = client.post("/api/read", json={"model": "cloze", "text": "A dog."}).text.splitlines()
    text = json.loads(lines[-1])["look"]["id"]
    for path, params, status, sentence in (
        ("looks/seen", {"look": text}, 400, "inspection of a text: expected that of an image"),
        ("looks/seen", {"look": "gone"}, 404, "no longer kept"),
        ("looks/features", {"look": look, "stage": 1, "channels": "0"}, 400, "stage 1: there are 1"),
        ("looks/features", {"look": look, "stage": 0, "channels": "16"}, 400, "channel 16: there are 16"),
        ("looks/features", {"look": look, "stage": 0, "channels": "0,"}, 422, "channels"),
        ("looks/features", {"look": look, "stage": 0, "channels": ",".join("0" * 65)}, 422, "channels"),
        ("looks/query", {"look": look, "group": "self", "at": 37}, 400, "query 37: there are 37"),
        ("looks/query", {"look": look, "group": "cross", "at": 0}, 400, "expected one of self"),
        ("looks/effects", {"look": look, "group": "self"}, 400, "expected the inspection of a text"),
        ("looks/lens", {"look": look, "at": 0}, 400, "expected a GPT"),
        ("looks/similar", {"look": look, "at": 0}, 400, "single text"),
    ):
        answer = client.get(f"/api/{path}", params=params)
        assert (answer.status_code, sentence in answer.json()["error"]) == (status, True), answer.text
    for body, status, sentence in (
        ({"model": "vit", "image": "gone"}, 404, "choose an image"),
        ({"model": "gone", "image": "cat"}, 404, "no model"),
        ({"model": "vit", "image": "../cat"}, 422, "image"),
        ({"model": "vit"}, 422, "image"),
    ):
        answer = client.post("/api/classify", json=body)
        assert (answer.status_code, sentence in answer.json()["error"]) == (status, True), answer.text
    assert "reads no images" in classify(client, "cloze")["error"]


def test_the_example_images_are_small_and_their_licences_are_stated(client):
    files = list(example_images.FOLDER.glob("*.webp"))
    assert {file.stem for file in files} == set(example_images.NAMES)
    assert sum(file.stat().st_size for file in files) < 300_000
    licence = (example_images.FOLDER / "LICENCE.txt").read_text()
    for name in example_images.NAMES:
        assert name in licence
        assert client.get("/api/images/one", params={"id": name}).status_code == 200


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("vit-imagenette", {"golf-ball": "golf ball", "parachute": "parachute", "church": "church"}),
        ("vit-cifar10", {"cat": "cat", "airplane": "airplane", "ship": "ship"}),
        ("resnet-cifar10", {"cat": "cat", "airplane": "airplane", "ship": "ship"}),
    ],
)
def test_the_shipped_models_know_the_examples(client, name, wanted):
    for image, label in wanted.items():
        assert classify(client, name, image)["classes"][0][0] == label


def test_the_guided_paths_head_attends_to_the_church():
    """Layer 0, head 1 of the first step about images: most of the class token's weight is on the church."""
    inspection, _ = inspect_image(ch.load("vit-imagenette", device="cpu"), example_images.example_file("church"))
    weights = inspection.group("self").query(0)[0, 1, 1:].reshape(16, 16)
    assert weights[5:14, 3:14].sum() > 0.9


def test_the_page_requests_no_more_channels_than_are_sent_at_once():
    script = (PAGE / "images" / "feature_grid.js").read_text(encoding="utf-8")
    assert int(re.search(r"PER_PAGE = (\d+)", script)[1]) <= image_inspection.MOST_CHANNELS
