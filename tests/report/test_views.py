"""Views: each fits the models that it says, and its result draws, prints and writes itself."""

import io
import json
import warnings
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import clearhead
from clearhead import Bundle, build, draw, load
from clearhead.data.images.files import example_images
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.errors import InputError, Notice
from clearhead.look import targets
from clearhead.look.maps import attention_map as maps
from clearhead.look.saliency_methods import gradients as gradient_methods
from clearhead.look.saliency_methods.float_input import FloatInput
from clearhead.report import view
from clearhead.report.example_inputs import example_crops, example_input
from clearhead.report.registry import VIEWS
from clearhead.report.result_files import WRITERS, page, table_html, write_result
from clearhead.report.views import fitting, time_limit
from clearhead.report.views.time_limit import TimeLimit

TEXT = "A man is standing in the"
INPUTS = {
    "everyday": TEXT, "cloze": "A dog is [MASK] in the park.", "fr-en": "Je sais.", "en-de-rnn": "A dog runs.",
    "resnet-cifar10": "cat", "captioner": "photographer",
}  # fmt: skip
OPTIONS = {
    "patching": {"everyday": {"other": "A dog is standing in the"}, "cloze": {"other": "A cat is [MASK] in the park."},
                 "fr-en": {"other": "Je mange."}, "en-de-rnn": {"other": "A cat runs."}},
    "saliency": {name: {"method": "gradient"} for name in INPUTS},
    "perturbation": {name: {"methods": "gradient,input-gradient", "steps": 3} for name in INPUTS},
}  # fmt: skip


@pytest.fixture(scope="module")
def shipped():
    return {name: load(name, device="cpu") for name in INPUTS}


def vit(pool="cls", **options):
    torch.manual_seed(0)
    model = build(
        "vit", classes=3, size=16, patch=4, width=12, depth=2, heads=3, pool=pool, positions="learned", **options
    )
    return Bundle(model, preprocessing=Preprocessing(resize=16, crop=(16, 16)), labels=("cat", "dog", "ship"))


def check(result):
    """A result has a figure, plain values for JSON, and a table."""
    picture = result._repr_png_()
    assert picture[1:4] == b"PNG"
    json.dumps(result.to_dict(), allow_nan=False)
    console = Console(width=200, file=io.StringIO())
    console.print(result)
    assert console.file.getvalue().count("\n") > 3


@pytest.mark.parametrize("name", INPUTS)
def test_every_view_that_fits_a_model_runs(name, shipped):
    bundle = shipped[name]
    found = fitting(bundle)
    assert found
    for one in found:
        given = "dog" if one == "neighbours" else INPUTS[name]
        with warnings.catch_warnings(action="ignore"):
            check(view(bundle, one, given, **OPTIONS.get(one, {}).get(name, {})))


def test_every_view_of_images_fits_a_small_vision_transformer():
    bundle, image = vit(), example_images()["cat"]
    options = {"patching": {"other": "church"}, "perturbation": {"steps": 3, "methods": "gradient,grad-cam"}}
    found = fitting(bundle)
    assert set(VIEWS) - set(found) == {"neighbours", "sinks"}
    for one in found:
        with warnings.catch_warnings(action="ignore"):
            check(view(bundle, one, str(image), **options.get(one, {})))


def test_a_view_that_does_not_fit_says_why_and_which_do(shipped):
    with pytest.raises(
        InputError, match=r"cls does not fit this GPT: it reads texts, and this view is of images; .*lens"
    ):
        view(shipped["everyday"], "cls", TEXT)
    with pytest.raises(
        InputError, match=r"cls does not fit this ResNet: it has no attention; views that fit: .*fields"
    ):
        view(shipped["resnet-cifar10"], "cls", "cat")
    with pytest.raises(
        InputError, match=r"cls does not fit this ViT: it has no class token.*views that fit: .*rollout"
    ):
        view(vit(pool="mean"), "cls", "cat")
    with pytest.raises(InputError, match="positions does not fit this GPT: its positions are not vectors"):
        view(shipped["everyday"], "positions")
    with pytest.raises(InputError, match=r"no view 'lense'.*fits this ResNet: .*the nearest is lens"):
        view(shipped["resnet-cifar10"], "lense", "cat")


def test_what_is_out_of_range_is_an_error_before_anything_is_drawn(shipped):
    with pytest.raises(IndexError, match="layer 9: there are 5, counted from 0"):
        view(shipped["everyday"], "attention", TEXT, layer=9)
    with pytest.raises(IndexError, match="head 9: there are 5"):
        view(shipped["everyday"], "attention", TEXT, head=9)
    with pytest.raises(IndexError, match="layer 9: there are 2"):
        view(vit(), "attention", "cat", layer=9)
    with pytest.raises(InputError, match="patching compares two inputs"):
        view(shipped["everyday"], "patching", TEXT)
    with pytest.raises(InputError, match="methods='gradient,magic': expected some of gradient, "):
        view(shipped["everyday"], "perturbation", TEXT, methods="gradient,magic")
    with pytest.raises(InputError, match="region='here': expected whole numbers"):
        view(shipped["everyday"], "saliency", TEXT, region="here")


def test_an_input_that_is_too_long_for_whole_maps_names_views_that_fit(shipped, monkeypatch):
    whole = maps.AttentionMap.dense
    monkeypatch.setattr(maps.AttentionMap, "dense", lambda self: whole(self, limit=20))
    with pytest.raises(InputError, match=r"too long for the view attention.*views that fit: .*lens") as problem:
        view(shipped["everyday"], "attention", TEXT)
    assert "rollout" not in str(problem.value).rpartition("views that fit")[2]


def timed(limit, passes, **options):
    """Report passes, each (seconds, finished, total), to a limit; the reports that came through before it raised."""
    now, seen = [0.0], []
    report = TimeLimit("effects", limit, done=lambda *x: seen.append(x), clock=lambda: now[0], **options)
    for seconds, finished, total in passes:
        now[0] += seconds
        report(finished, total)
    return seen


def test_the_time_of_a_view_is_estimated_announced_and_limited():
    assert timed(None, [(1e6, 1, 2)] * 2) == [(1, 2)] * 2
    assert len(timed(60.0, [(0.9, 1, 10)] * 10)) == 10  # too little for a warning
    with pytest.warns(Notice, match="^effects: about 40 seconds$") as said:
        timed(60.0, [(0.5, 1, 80)] * 80)
    assert len(said) == 1
    stopped = (
        "effects would take about 3 minutes, and the limit is 1 minute: expected more seconds, --limit 240 .*, or x"
    )
    with pytest.raises(InputError, match=stopped):
        timed(60.0, [(2, 1, 100)], cheaper="x")
    # A phase of its own total: what is spent so far counts, and a quick first pass is no estimate.
    with pytest.warns(Notice, match="about 50 seconds"), pytest.raises(InputError, match="about 2 minutes"):
        timed(60.0, [(5, 1, 10)] * 10 + [(0.01, 1, 30), (5, 1, 30)])
    with pytest.raises(InputError, match=r"limit=0\.0: expected seconds above 0"):
        timed(0.0, [])


@pytest.mark.parametrize(
    ("name", "options"),
    [("effects", {}), ("patching", {"other": "A dog is standing in the"}), ("heads", {}), ("perturbation", {}),
     ("saliency", {"method": "occlusion"})],
)  # fmt: skip
def test_every_costly_view_is_limited(name, options, shipped, monkeypatch):
    monkeypatch.setattr(targets, "ROW_TOKENS", 6)  # a row per pass
    monkeypatch.setattr(time_limit, "MEASURED", 0.0)
    monkeypatch.setattr(FloatInput, "rows", lambda self, outputs: 1)
    with pytest.raises(InputError, match=f"the view {name} would take about .*--limit"):
        view(shipped["everyday"], name, TEXT, limit=1e-4, **options)


def test_a_method_that_does_not_add_up_is_left_out_of_the_curves(shipped, monkeypatch):
    monkeypatch.setattr(gradient_methods, "INCOMPLETE", -1.0)
    monkeypatch.setattr(gradient_methods, "MOST", 0)
    with pytest.warns(Notice, match="integrated is left out: integrated gradients: the values add up to"):
        curves = view(shipped["everyday"], "perturbation", TEXT, methods="gradient,integrated", steps=2)
    assert list(curves.deletion) == ["gradient"]
    with pytest.raises(InputError, match="expected method='occlusion'"):
        view(shipped["everyday"], "perturbation", TEXT, methods="integrated", steps=2)


def test_the_share_of_a_region_is_that_of_the_saliency(shipped):
    result = view(shipped["everyday"], "saliency", TEXT, method="gradient", region="1,2")
    assert result.share == pytest.approx(result.saliency.share([1, 2]))
    assert result.to_dict()["share"] == result.share
    image = view(shipped["resnet-cifar10"], "saliency", "cat", method="gradient", region="0,0,16,32")
    other = view(shipped["resnet-cifar10"], "saliency", "cat", method="gradient", region="16,0,32,32")
    assert image.share + other.share == pytest.approx(1)
    assert all(axes.patches for axes in image.figure().axes)
    assert f"{image.share:.0%} of the saliency in the region" in image.figure().get_suptitle()
    numbers = view(shipped["resnet-cifar10"], "saliency", "cat", method="gradient", region=(0, 0, 16, 32))
    assert (numbers.region, numbers.share) == (image.region, image.share)
    with pytest.raises(InputError, match=r"box \(16, 0, 0, 32\): expected .* with left < right and top < bottom"):
        view(shipped["resnet-cifar10"], "saliency", "cat", method="gradient", region=(16, 0, 0, 32))
    with pytest.raises(InputError, match=r"region=\(-1, 1\): expected whole numbers"):
        view(shipped["everyday"], "saliency", TEXT, method="gradient", region=(-1, 1))


def test_a_picture_of_saliency_explains_itself(shipped):
    signed = clearhead.look.saliency(shipped["everyday"], TEXT, method="integrated", target="street")
    figure = signed.figure()
    assert figure.get_suptitle() == f"integrated gradients: street, probability {signed.probability:.1%}"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["for street", "against street"]
    plain = view(shipped["resnet-cifar10"], "saliency", "cat", method="grad-cam").figure()
    assert plain.get_suptitle().startswith("Grad-CAM: cat, probability ")
    assert [text.get_text() for text in plain.legends[0].get_texts()] == ["important, the darker the more"]


def test_units_and_channels_are_numbers_or_text():
    bundle = vit()
    place, text = (view(bundle, "fields", "cat", unit=unit) for unit in ((1, 2), "1,2"))
    np.testing.assert_array_equal(place.maps, text.maps)
    assert view(bundle, "features", "cat", channels=(3, 1)).channels == [3, 1]


def test_an_image_that_ships_has_a_name_in_every_function_of_look(shipped, tmp_path, monkeypatch):
    resnet, file = shipped["resnet-cifar10"], example_images()["cat"]
    named, opened = (clearhead.look.saliency(resnet, one, method="gradient").values for one in ("cat", file))
    assert torch.equal(named, opened)
    same = clearhead.look.cka({"a": resnet}, data=["cat", "ship", "church", "golf-ball"]).matrix
    files = [example_images()[name] for name in ("cat", "ship", "church", "golf-ball")]
    np.testing.assert_array_equal(same, clearhead.look.cka({"a": resnet}, data=files).matrix)
    monkeypatch.chdir(tmp_path)
    Path("cat").write_bytes(example_images()["church"].read_bytes())  # a file of the user comes first
    own = clearhead.look.saliency(resnet, "cat", method="gradient").picture
    church = clearhead.look.saliency(resnet, "church", method="gradient").picture
    assert np.array_equal(own, church)


@pytest.mark.parametrize("given", ["golfball", "golf ball", "golf-bal.jpg"])
def test_a_missing_image_names_those_that_ship(given, shipped):
    with pytest.raises(FileNotFoundError, match=r"no such file.*that ships \(.*cat, .*the nearest is golf-ball"):
        view(shipped["resnet-cifar10"], "saliency", given)


def test_a_masked_word_or_a_position_is_asked_for(shipped):
    with pytest.raises(InputError, match=r"one \[MASK\], as in 'A dog is \[MASK\] .* as in at=3"):
        view(shipped["cloze"], "lens", "A dog is in the park.")


def test_a_word_of_a_text_is_a_target_without_its_space(shipped):
    spaced = clearhead.look.logit_attribution(shipped["everyday"], TEXT, target=" street")
    assert view(shipped["everyday"], "attribution", TEXT, target="street").logit == spaced.logit
    both = view(shipped["everyday"], "attribution", TEXT, target="street", against="park")
    assert both.answer == "street against park"
    with pytest.raises(InputError, match="expected a target too"):
        view(shipped["everyday"], "attribution", TEXT, against="park")


def test_the_attention_of_an_image_is_the_class_token_row():
    bundle, image = vit(), str(example_images()["cat"])
    found = view(bundle, "attention", image, layer=1)
    expected = clearhead.look.cls_maps(bundle, image, layer=1)
    np.testing.assert_allclose(found.maps, expected.maps.numpy(), atol=1e-6)
    np.testing.assert_allclose(found.maps.sum((1, 2)) + found.special, 1, atol=1e-5)
    mean = view(vit(pool="mean"), "attention", image)
    assert mean.queries == "mean of all patches"
    np.testing.assert_allclose(mean.maps.sum((1, 2)) + mean.special, 1, atol=1e-5)


def test_a_translator_is_shown_with_its_own_translation(shipped):
    found = view(shipped["fr-en"], "attention", "Je ne sais pas.")
    assert "".join(found.maps.target).startswith("I don")
    assert view(shipped["fr-en"], "attention", "Je sais.", target="I know.").maps.target[0] == "I"


def test_the_effects_of_a_translator_are_measured_in_the_middle_of_its_translation(shipped):
    found = view(shipped["fr-en"], "effects", "Je ne sais pas.")
    assert len(found.tokens) > 2
    assert (found.pearson != 0).any()


def test_files_by_their_endings(shipped, tmp_path):
    result = view(shipped["everyday"], "saliency", TEXT, method="gradient")
    beginnings = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!doctype html>", ".json": b"{"}
    assert set(beginnings) == set(WRITERS)
    for ending, start in beginnings.items():
        path = write_result(result, tmp_path / "new" / f"x{ending}", "A title")
        assert path.read_bytes().startswith(start)
    html = (tmp_path / "new" / "x.html").read_text()
    assert "<title>A title</title>" in html
    assert "data:image/png;base64," in html
    assert "http" not in html
    with pytest.raises(InputError, match=r"ends in \.png, \.svg, \.pdf, \.html, \.json"):
        write_result(result, tmp_path / "x.gif")


def test_texts_of_users_are_escaped_in_a_page():
    table = draw.Table(columns=("<b>",), rows=[("<script>",), ("a & b",)])
    html = page("<i>", table_html(table))
    for text in ("<b>", "<script>", "<i>", "a & b"):
        assert text not in html
        assert escape(text) in html


def test_models_have_an_example_input(shipped):
    assert example_input(shipped["resnet-cifar10"]).endswith("airplane.webp")
    assert Path(example_input(shipped["captioner"])).is_file()
    assert isinstance(view(shipped["everyday"], "lens").tokens, list)
    crops = example_crops()
    assert len(crops) == 8 * len(example_images())
    assert np.array_equal(np.asarray(crops[3]), np.asarray(example_crops()[3]))


def test_the_view_of_sinks_takes_a_way_to_show_them(shipped):
    raw, without, norms = (
        view(shipped["everyday"], "sinks", TEXT, layer=3, show=show).shown
        for show in ("raw", "without-sink", "value-norm")
    )
    assert bool(raw.sinks.any())
    assert float((without.weights * raw.sinks[:, :, None]).sum()) == 0
    assert not torch.equal(norms.weights, raw.weights)
    with pytest.raises(IndexError, match="layer 9: there are"):
        view(shipped["everyday"], "sinks", TEXT, layer=9)
