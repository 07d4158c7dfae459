"""caption: the text, its maps through beam search, given captions, bad images, and the command line."""

import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead as ch
from clearhead.data import make_data
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.errors import InputError, Notice
from clearhead.tasks import Caption
from clearhead.tasks.evaluation.captions import pointing
from clearhead.tasks.translate import NoAttentionError
from support.command_line import call

ENCODER = {"name": "resnet", "width": 4, "depths": [1, 1], "stem": "small"}
DATA = make_data("scenes", {"pixels": 24}, seed=0)
KINDS = {
    "soft": {"decoder": "rnn"},
    "hard": {"decoder": "rnn", "attention": "hard", "cell": "gru", "depth": 2},
    "transformer": {"decoder": "transformer", "depth": 2, "heads": 2, "encoder_depth": 1},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def captioner(kind="soft", **options):
    torch.manual_seed(3)
    model = ch.build("captioner", vocab=len(DATA.tokens), width=8, encoder=ENCODER, **KINDS.get(kind, {}), **options)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    return ch.Bundle(model, DATA.tokens, preprocessing=DATA.preprocessing)


def pictures(n=3):
    return [scene.image.transpose(1, 2, 0) for scene in DATA.scenes(n)]


@kinds
def test_every_word_has_a_map_and_the_search_keeps_them(kind):
    """The maps that the beams saw while they were searched, re-indexed along the back-pointers, are those returned."""
    bundle, image = captioner(kind), pictures(1)[0]
    result = ch.caption(bundle, image, beams=4, best=3, limit=6)
    assert result.maps.shape == (len(result.words), 12, 12)
    assert len(result.words) == len(result.text.split()) > 1
    np.testing.assert_allclose(result.maps.sum((1, 2)), 1.0, atol=1e-5)
    for one in (result, *result.alternatives):
        given = ch.caption(bundle, image, text=one.text)
        np.testing.assert_allclose(one.maps, given.maps, atol=1e-6)
        # The decoder step by step, from its own state: the map of token t comes from the step that wrote it.
        ids = [DATA.tokens.start, *DATA.tokens.encode(one.text)]
        pixels = bundle.pixels(image)[None]
        with torch.no_grad():
            state = bundle.model.start({"images": pixels}, 1, limit=9)
            state.expand(3)
            for t, token in enumerate(ids[:-1]):
                with ch.watch(bundle.model, "decoder.blocks.*.cross.weights") as tape:
                    bundle.model.step(torch.full((3, 1), token), state)
                state.reorder(torch.tensor([2, 0, 1]))
                maps = [tape[name].dense()[0].mean(0)[0].numpy() for name in tape.names]
                np.testing.assert_allclose(np.mean(maps, 0).reshape(12, 12), one.maps[t], atol=1e-5)


@kinds
def test_the_score_of_a_caption_is_that_of_forced_decoding(kind):
    bundle, image = captioner(kind), pictures(1)[0]
    for one in (result := ch.caption(bundle, image, beams=3, best=3, limit=40), *result.alternatives):
        if not one.cut:
            assert ch.caption(bundle, image, text=one.text).logprob == pytest.approx(one.logprob, abs=1e-4)
            assert ch.caption(bundle, image, text=one.text).score == pytest.approx(one.score, abs=1e-4)
            assert one.score == pytest.approx(one.logprob / len(one.pieces) ** 0.6, abs=1e-4)
    assert result.score >= max(one.score for one in result.alternatives)


def test_a_word_of_your_own_has_a_map_and_a_probability():
    result = ch.caption(captioner("transformer"), pictures(1)[0], text="purple cross")
    assert (result.words, result.text, result.cut) == (["purple", "cross"], "purple cross", False)
    layer, head = result.attention(layer=1), result.attention(layer=1, head=0)
    both = np.mean([head, result.attention(layer=1, head=1)], axis=0)
    np.testing.assert_allclose(both, layer, atol=1e-6)
    np.testing.assert_allclose(np.mean([layer, result.attention(layer=0)], axis=0), result.maps, atol=1e-6)
    with pytest.raises(ValueError, match="head=7: there are 2"):
        result.attention(head=7)
    with pytest.raises(ValueError, match="the caption is empty"):
        ch.caption(captioner(), pictures(1)[0], text=" ")


@pytest.mark.parametrize("kind", [*KINDS, "none"])
def test_the_evidence_of_a_word_is_its_probability_where_one_place_is_seen_alone(kind):
    bundle = captioner(kind, **({"decoder": "rnn", "attention": "none"} if kind == "none" else {}))
    image = pictures(1)[0]
    result = ch.caption(bundle, image, text="a red cross")
    ids = DATA.tokens.encode("a red cross").tolist()
    model, pixels = bundle.model, bundle.pixels(image)[None]
    memory, expected = model.look(pixels), []
    with torch.no_grad():
        for place in range(memory.shape[1]):
            model.look = lambda _, place=place: memory[:, place : place + 1]
            logits = model(torch.tensor([[DATA.tokens.start, *ids[:-1]]]), images=pixels)
            expected.append(logits[0].softmax(-1)[range(3), ids])
    del model.look
    shares = torch.stack(expected, dim=1).numpy()
    shares = shares / shares.sum(1, keepdims=True)
    np.testing.assert_allclose(result.evidence(), shares.reshape(3, 12, 12), atol=1e-6)
    other = ch.caption(bundle, image, text="blue")
    assert not np.allclose(other.evidence()[0], result.evidence()[0], atol=1e-5)
    if kind != "none":
        np.testing.assert_allclose(other.maps[0], result.maps[0], atol=1e-6)  # nothing was read before either word


def test_without_attention_a_caption_has_no_maps():
    bundle = captioner("none", decoder="rnn", attention="none")
    result = ch.caption(bundle, pictures(1)[0], limit=4)
    assert result.to_dict()["maps"] == []
    with pytest.raises(NoAttentionError, match="reads as one vector"):
        result.maps  # noqa: B018


@kinds
def test_many_images_are_captioned_as_if_each_were_alone(kind):
    bundle, images = captioner(kind), pictures(4)
    together = ch.caption(bundle, images, beams=3, limit=7)
    for image, one in zip(images, together, strict=True):
        alone = ch.caption(bundle, image, beams=3, limit=7)
        assert (one.text, one.score) == (alone.text, pytest.approx(alone.score, abs=1e-4))


def test_samples_depend_on_the_seed_alone():
    bundle, images = captioner(), pictures(2)
    first, second = ch.caption(bundle, images, sample=True, seed=5, best=2, limit=6)
    again = ch.caption(bundle, images[1], sample=True, seed=6, best=2, limit=6)
    assert (second.text, second.seed) == (again.text, 6)
    assert len({one.text for one in (first, *first.alternatives, second, *second.alternatives)}) > 1


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((24, 24, 3), np.uint8),
        np.full((5, 91, 3), 255, np.uint8),
        np.random.default_rng(0).integers(0, 256, (64, 48, 3), dtype=np.uint8),
        np.zeros((1, 1), np.uint8),
        Image.new("RGBA", (30, 20)),
    ],
    ids=["black", "white, wide", "noise", "one grey pixel", "transparent"],
)
@kinds
def test_any_image_has_a_caption(kind, image):
    result = ch.caption(captioner(kind), image, limit=5)
    assert np.isfinite(result.score)
    assert result.maps.shape[1:] == (12, 12)


def truncated(kind: str) -> bytes:
    """The first half of an image file."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file, kind)
    return file.getvalue()[: len(file.getvalue()) // 2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("broken.jpg", b"\xff\xd8 no image"),
        ("cut.jpg", truncated("JPEG")),
        ("cut.png", truncated("PNG")),
        ("text.png", b"A dog runs.\n"),
        ("empty.png", b""),
    ],
)
def test_a_file_that_is_no_image_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{re.escape(name)} cannot be read as an image"):
        ch.caption(captioner(), tmp_path / name)


def test_bad_input_is_a_sentence():
    bundle = captioner()
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        ch.caption(bundle, "missing.png")
    gpt = ch.Bundle(ch.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2), ch.tokens.Characters("abcde"))
    with pytest.raises(ValueError, match="this GPT cannot caption: expected a captioner"):
        ch.caption(gpt, pictures(1)[0])
    with pytest.raises(ValueError, match=r"this Captioner writes texts: expected clearhead\.caption"):
        bundle(pictures(1)[0])


def test_pointing_counts_words_whose_map_is_largest_in_the_right_box():
    (scene,) = DATA.scenes(1)
    words = scene.caption.split()
    counted = [i for i, box in enumerate(scene.boxes) if box is not None and words[i] != "a"]
    maps = np.zeros((len(words), 12, 12))
    for i in counted[1:]:  # all but the first point to the middle of their box
        top, left, bottom, right = scene.boxes[i]
        maps[i, (top + bottom) // 4, (left + right) // 4] = 1.0
    top, left, _, _ = scene.boxes[counted[0]]
    maps[counted[0], 0 if top > 4 else 11, 0 if left > 4 else 11] = 1.0

    one = Caption(text=scene.caption, score=0.0, logprob=0.0, pieces=words)
    vars(one)["maps"] = maps  # instead of those of a model
    share, chance = pointing([one], [scene])
    assert share == pytest.approx((len(counted) - 1) / len(counted))
    assert 0.02 < chance < 0.3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("captioner")
    ch.save(captioner("transformer"), home / "model")
    (home / "photos").mkdir()
    for i, image in enumerate(pictures(2)):
        Image.fromarray(image).save(home / "photos" / f"{i}.png")
    return home


def test_the_command_writes_captions_maps_and_json(folder):
    one = call("caption", folder / "model", folder / "photos" / "0.png", "beams=2", "limit=5")
    assert one.exit_code == 0, one.output
    expected = ch.caption(captioner("transformer"), folder / "photos" / "0.png", beams=2, limit=5)
    assert one.stdout == f"{expected.text}\n"
    several = call("caption", folder / "model", folder / "photos", "limit=5", "--maps", folder / "maps")
    lines = several.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(folder / "photos" / f"{i}.png") for i in range(2)]
    assert sorted(path.name for path in (folder / "maps").iterdir()) == ["0.png", "1.png"]
    row = json.loads(call("caption", folder / "model", folder / "photos" / "1.png", "text=a dog", "--json").stdout)
    assert (row["words"], np.array(row["maps"]).shape) == (["a", "<unk>"], (2, 12, 12))
    wrong = call("caption", folder / "model", folder / "photos" / "1.png", "beem=3")
    assert wrong.exit_code == 1
    assert "the nearest is beams" in wrong.output


def test_evaluating_scenes_reports_exact_captions_and_pointing(monkeypatch):
    from clearhead.tasks.evaluation import captions as evaluate_captions

    monkeypatch.setattr(evaluate_captions, "SCENES", 12)
    scores = ch.evaluate(captioner(), "scenes", beams=1, limit=9)
    assert scores.scores[0].name == "exact"
    assert len(scores.hypotheses) == 12
    assert scores["exact"] == 100 * np.mean(
        [a == b for a, (b,) in zip(scores.hypotheses, scores.references, strict=True)]
    )
    with pytest.raises(ValueError, match="a captioner is evaluated on flickr8k or scenes"):
        ch.evaluate(captioner(), "multi30k")


def test_a_caption_of_your_own_is_read_as_captions_are_written():
    bundle, image = captioner(), pictures(1)[0]
    plain = ch.caption(bundle, image, text="a red circle")
    assert ch.caption(bundle, image, text="A Red circle.").text == plain.text
    with pytest.warns(Notice, match="not in the captioner's vocabulary: 'dog'"):
        ch.caption(bundle, image, text="a red dog")


@kinds
def test_the_log_probabilities_of_words_and_of_the_end_add_up(kind):
    bundle, image = captioner(kind), pictures(1)[0]
    result = ch.caption(bundle, image, text="a red circle")
    each = result.forced.logprobs()
    assert len(result.logprobs) == 3
    assert sum(result.logprobs) + float(each[-1]) == pytest.approx(result.logprob, abs=1e-4)
    longer = ch.caption(bundle, image, text="a red circle above a blue square")
    assert longer.logprobs[:3] == pytest.approx(result.logprobs, abs=1e-4)


def test_no_beams_are_refused():
    with pytest.raises(ValueError, match=r"beams=0: expected 1 or more"):
        ch.caption(captioner(), pictures(1)[0], beams=0)


def test_pictures_of_images_with_the_same_name_do_not_overwrite_each_other(tmp_path):
    folder = ch.save(captioner(), tmp_path / "model")
    for name in ("a/dog.png", "b/dog.png", "cat.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (24, 24)).save(tmp_path / name)
    files = [str(tmp_path / name) for name in ("a/dog.png", "b/dog.png", "cat.png")]
    done = call("caption", folder, *files, "limit=3", "--maps", tmp_path / "maps")
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (tmp_path / "maps").iterdir())
    assert len(names) == 3
    assert "cat.png" in names
    done = call("caption", folder, files[0], "text=" + "a red circle " * 100)
    assert "this model writes" in done.output
    done = call("classify", folder, files[0])
    assert "this Captioner cannot classify" in done.output


def test_a_file_of_a_folder_that_cannot_be_decoded_is_left_out_and_named(folder, tmp_path):
    (tmp_path / "good.png").write_bytes((folder / "photos" / "0.png").read_bytes())
    (tmp_path / "bad.png").write_bytes(b"no image")
    done = call("caption", folder / "model", tmp_path, "limit=5")
    assert done.exit_code == 0, done.output
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [str(tmp_path / "good.png")]
    assert "1 of 2 images cannot be decoded and are left out" in done.stderr
    alone = call("caption", folder / "model", tmp_path / "bad.png")
    assert (alone.exit_code, "cannot be read as an image" in alone.output) == (1, True)


def test_the_evidence_for_a_word_is_printed_on_request(folder):
    image = folder / "photos" / "1.png"
    row = json.loads(call("caption", folder / "model", image, "text=a red", "--evidence", "--json").stdout)
    expected = ch.caption(captioner("transformer"), image, text="a red").evidence()
    np.testing.assert_allclose(row["evidence"], expected, atol=1e-6)


def test_pictures_overwrite_neither_a_photograph_nor_each_other(folder, tmp_path):
    content = (folder / "photos" / "0.png").read_bytes()
    (tmp_path / "deep").mkdir()
    files = [tmp_path / "dog.png", tmp_path / "deep" / "dog.png", tmp_path / "deep" / ".." / "deep" / "dog-2.png"]
    for file in files:
        file.write_bytes(content)
    done = call("caption", folder / "model", *files, "limit=3", "--maps", tmp_path)
    assert done.exit_code == 0, done.output
    assert [file.read_bytes() == content for file in files] == [True] * 3
    assert len(list(tmp_path.glob("*.png"))) == 4


def test_maps_are_drawn_over_what_the_model_saw():
    image = Image.new("RGB", (480, 48))
    image.paste((255, 0, 0), (216, 0, 264, 48))
    seen = Preprocessing(resize=48, crop=(48, 48)).seen(image)
    assert (seen.size, seen.getcolors()) == ((48, 48), [(48 * 48, (255, 0, 0))])
    assert Preprocessing(resize=(24, 24), crop=(48, 48)).seen(image).size == (960, 96)  # with borders
    assert Preprocessing(resize=48).seen(image) is image


def test_a_strip_of_a_large_image_is_drawn_from_a_small_one():
    image = np.zeros((3000, 2000, 3), np.uint8)
    figure = ch.draw.strip(image, np.full((1, 2, 2), 0.25), ["a"])
    assert figure.axes[0].images[0].get_array().shape[:2] == (640, 427)


def test_outputs_that_stand_for_no_token_are_never_written():
    bundle = captioner("transformer")
    wide = ch.build(
        "captioner", vocab=len(bundle.tokens) + 30, width=8, encoder={"name": "resnet", "width": 4, "depths": [1, 1]}
    )
    with torch.no_grad():
        wide.head.weight[len(bundle.tokens) :] = 50.0 * wide.head.weight[:1]
    bundle = ch.Bundle(wide, bundle.tokens, preprocessing=bundle.preprocessing)
    for image in pictures(3):
        assert ch.caption(bundle, image, beams=2, limit=4).text is not None


def test_a_given_caption_checks_its_penalty_and_names_unknown_signs():
    with pytest.raises(InputError, match="expected -10 to 10"):
        ch.caption(captioner(), pictures(1)[0], text="a red circle", penalty=float("nan"))
    with pytest.warns(Notice, match="not in the captioner's vocabulary"):
        ch.caption(captioner(), pictures(1)[0], text="...")
