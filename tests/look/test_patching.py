"""Activation patching: every cell equals a run of its own, in which one activation is replaced by hand."""

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.look import patching, targets
from clearhead.tokens import Characters, Pair, Words
from support import foreign_models

CLEAN, CORRUPTED = torch.tensor([[1, 2, 3, 4, 0]]), torch.tensor([[1, 4, 3, 4, 0]])
VIEWS = {
    "residual": "blocks.{}",
    "attention": "blocks.{}.attn",
    "mlp": "blocks.{}.mlp",
    "heads": "blocks.{}.attn.heads",
}


def gpt(**options):
    torch.manual_seed(0)
    sizes = {"vocab": 5, "context": 8, "width": 12, "depth": 2, "heads": 3}
    return ch.build("gpt", **sizes, **options).double().eval()


def by_hand(model, clean, corrupted, address, places, measure):
    """The normalised effect of each place of one address, one pass after another."""
    with torch.no_grad(), ch.watch(model, address) as tape:
        best = measure(model(clean))
    record, least, found = tape[address], measure(model(corrupted).detach()), []
    for place in range(places):

        def put(x, place=place):
            y, axis = x.clone(), int(x.ndim > 2)  # the MLP of OPT has no axis of rows
            y.select(axis, place).copy_(record.select(axis, place))
            return y

        with torch.no_grad(), ch.edit(model, {address: put}):
            found.append((measure(model(corrupted)) - least) / (best - least))
    return torch.stack(found)


@pytest.mark.parametrize("what", list(VIEWS))
@pytest.mark.parametrize("room", [5, 1 << 12], ids=["a cell at a time", "all cells at once"])
def test_every_cell_equals_a_run_of_its_own(what, room, monkeypatch):
    monkeypatch.setattr(targets, "ROW_TOKENS", room)
    model, progress = gpt(), []
    result = patching(model, CLEAN, CORRUPTED, target=2, what=what, done=lambda *x: progress.append(x))
    places = 3 if what == "heads" else 5
    assert result.matrix.shape == (2, places)
    for layer in range(2):
        address = VIEWS[what].format(layer)
        assert result.layers[layer] == address
        want = by_hand(model, CLEAN, CORRUPTED, address, places, lambda out: out[0, -1].log_softmax(-1)[2])
        torch.testing.assert_close(result.matrix[layer], want, rtol=0, atol=1e-9)
    assert sum(new for new, _ in progress) == progress[0][1] == 2 * places
    assert len(progress) == (2 * places if room == 5 else 1)


def test_the_clean_stream_at_the_last_token_of_the_last_layer_is_the_clean_answer():
    result = patching(gpt(), CLEAN, CORRUPTED, target=(2, 0))
    want = torch.tensor([0, 0, 0, 0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(result.matrix[1], want, rtol=0, atol=1e-9)
    torch.testing.assert_close(result.matrix[:, 0], torch.zeros(2).double(), rtol=0, atol=1e-9)  # the same token
    assert result.matrix[0, 1].abs() > 1e-3  # where the inputs differ
    assert result.answer == "2 against 0"


def test_without_a_target_it_is_the_clean_answer_against_the_corrupted_one():
    model = gpt()
    best, other = (int(model(ids)[0, -1].argmax()) for ids in (CLEAN, CORRUPTED))
    result = patching(model, CLEAN, CORRUPTED)
    assert result.answer == (f"{best} against {other}" if best != other else str(best))


def test_a_vision_transformer_has_patches_as_positions():
    torch.manual_seed(0)
    model = ch.build("vit", classes=4, size=32, patch=16, width=12, depth=2, heads=3, registers=1).double().eval()
    clean, corrupted = torch.randn(2, 1, 3, 32, 32, dtype=torch.float64)
    result = patching(model, clean, corrupted, target=1)
    want = by_hand(model, clean, corrupted, "blocks.0", 6, lambda out: out[0].log_softmax(-1)[1])
    torch.testing.assert_close(result.matrix[0], want, rtol=0, atol=1e-9)
    preprocessing = ch.load("vit-cifar10", device="cpu").preprocessing
    bundle = ch.Bundle(model, labels=("a", "b", "c", "d"), preprocessing=preprocessing)
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    other = picture.copy()
    other[:16] = 0
    result = patching(bundle, picture, other, what="mlp", target=("a", "c"))
    assert result.columns == ["<class>", "<register 1>", "0,0", "0,1", "1,0", "1,1"]
    assert (result.grid, result.answer) == ((2, 2), "a against c")


def test_an_encoder_is_measured_at_its_masked_token():
    torch.manual_seed(0)
    words = Words(["a", "dog", "cat", "runs"])
    bert = ch.build("bert", vocab=9, context=8, width=12, depth=2, heads=3).double()
    bundle = ch.Bundle(bert, words)
    result = patching(bundle, "a dog [MASK]", "a cat [MASK]", target="runs")
    assert result.columns == ["<start>", "a", "dog", "[MASK]", "<end>"]
    ids = torch.tensor([[1, 4, 5, 8, 2]]), torch.tensor([[1, 4, 6, 8, 2]])
    want = by_hand(bert, *ids, "blocks.1", 5, lambda out: out[0, 3].log_softmax(-1)[7])
    torch.testing.assert_close(result.matrix[1], want, rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match=r"one \[MASK\], .*or the position of a token, as in at=3"):
        patching(bundle, "a dog", "a cat", target="runs")


def test_a_translator_has_the_layers_of_its_encoder_and_of_its_decoder():
    torch.manual_seed(0)
    pair = Pair(Words(["a", "dog", "cat"]), Words(["ein", "Hund", "Katze"]))
    model = ch.build("transformer", vocab=7, target_vocab=7, context=16, width=12, heads=3, depth=2).double()
    bundle = ch.Bundle(model, pair)
    result = patching(bundle, "a dog", "a cat", target=("Hund", "Katze"), stack="encoder", written="ein")
    assert (result.columns, result.layers) == (["a", "dog", "<end>"], ["encoder.blocks.0", "encoder.blocks.1"])
    result = patching(bundle, "a dog", "a cat", target="Hund", stack="decoder", written="ein", what="cross")
    assert result.columns == ["<start>", "ein"]
    ids, sources = torch.tensor([[1, 4]]), [torch.from_numpy(pair.read(text))[None] for text in ("a dog", "a cat")]

    class Reading(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, source):
            return self.model(ids, source=source)

    want = by_hand(
        Reading(), *sources, "model.decoder.blocks.1.cross", 2, lambda out: out[0, -1].log_softmax(-1)[5]
    )  # fmt: skip
    torch.testing.assert_close(result.matrix[1], want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-neox", "qwen3", "opt"])
@pytest.mark.parametrize("what", list(VIEWS))
def test_models_of_transformers_are_patched_by_their_own_addresses(name, what):
    model = foreign_models.build(name).double()
    clean = foreign_models.inputs(name)["input_ids"][:1]
    corrupted = clean.clone()
    corrupted[0, 2] = 3
    result = patching(model, {"input_ids": clean}, {"input_ids": corrupted}, target=9, what=what)
    assert result.matrix.shape == (
        2,
        4 if what == "heads" and name in ("llama", "qwen3") else 3 if what == "heads" else 7,
    )

    class Tensors(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return model(input_ids=ids).logits

    if what in ("residual", "heads", "mlp"):
        address = f"model.{result.layers[0]}"
        with torch.no_grad(), ch.watch(model, result.layers[0]) as tape:
            model(input_ids=clean)
        if isinstance(tape[result.layers[0]], torch.Tensor):
            want = by_hand(
                Tensors(), clean, corrupted, address, result.matrix.shape[1],
                lambda out: out[0, -1].log_softmax(-1)[9],
            )  # fmt: skip
            torch.testing.assert_close(result.matrix[0], want, rtol=0, atol=1e-8)


def test_results_are_plain_values_and_a_figure():
    result = patching(gpt(), CLEAN, CORRUPTED, target=2)
    assert result.to_dict()["matrix"] == result.matrix.tolist()
    assert len(result.figure().axes) == 2


def test_the_figure_names_both_inputs_and_what_the_colours_mean():
    words = Words(["a", "dog", "cat", "runs", "sleeps"])
    torch.manual_seed(0)
    bundle = ch.Bundle(ch.build("gpt", vocab=9, context=8, width=12, depth=2, heads=3), words)
    result = patching(bundle, "a dog", "a cat", target=("runs", "sleeps"))
    axes, bar = result.figure().axes
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["dog / cat" if name == "dog" else name for name in result.columns]
    assert result.answer == "runs against sleeps"
    assert result.answer in axes.get_title()
    assert bar.get_ylabel() == "0: as the second input, 1: as the first"
    heads = patching(bundle, "a dog", "a cat", target=("runs", "sleeps"), what="heads").figure().axes[0]
    assert [label.get_text() for label in heads.get_xticklabels()] == ["0", "1", "2"]


def test_what_does_not_fit_is_a_sentence():
    bundle = ch.Bundle(gpt(), Characters("abcde"))
    with pytest.raises(ValueError, match="clean text has 2 tokens and the corrupted one 3"):
        patching(bundle, "ab", "abc")
    with pytest.raises(ValueError, match=r"what='mpl': the layers blocks.\* have residual, attention, mlp, heads"):
        patching(bundle, "ab", "ac", what="mpl")
    with pytest.raises(ValueError, match="same"):
        patching(bundle, "ab", "ab", target="c")
    with pytest.raises(ValueError, match="'ab' is 2 tokens"):
        patching(bundle, "ab", "ac", target="ab")
    with pytest.raises(ValueError, match="counted from 0"):
        patching(bundle, "ab", "ac", target="a", at=2)
    with pytest.raises(ValueError, match="no list of layers with attention"):
        patching(ch.build("resnet", classes=3).eval(), torch.zeros(1, 3, 32, 32), torch.ones(1, 3, 32, 32))
    with pytest.raises(ValueError, match="stack='decodre': expected one of blocks"):
        patching(bundle, "ab", "ac", stack="decodre")
    with pytest.raises(ValueError, match="a bare GPT was given a str"):
        patching(bundle.model, "ab", "ac")
    rnn = ch.load("en-de-rnn", device="cpu")
    with pytest.raises(ValueError, match="runs 2 times in one pass"):
        patching(rnn, "A dog runs.", "A cat runs.", written="Ein", what="attention")
    embedder = ch.Bundle(ch.build("bert", vocab=9, width=12, depth=1, heads=3, answer="sentence"), Words(["a"]))
    with pytest.raises(ValueError, match="returns vectors and no logits"):
        patching(embedder, "a", "a")


def test_a_model_in_training_mode_and_numbers_that_are_no_output_are_refused():
    model = ch.build("gpt", vocab=9, context=8, width=8, depth=2, heads=2)
    ids = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 5, 3]])
    with pytest.raises(ValueError, match="is in training mode"):
        patching(model, *ids, target=4)
    for target, message in ((-1, "counted from 0"), (9, "there are 9 outputs")):
        with pytest.raises(ValueError, match=message):
            patching(model.eval(), *ids, target=target)


def test_columns_of_a_decoder_are_what_it_reads_though_the_source_is_as_long():
    bundle = ch.load("en-de", device="cpu")
    result = patching(bundle, "A dog runs.", "A cat runs.", stack="decoder", written="Ein Hund ist da")
    assert result.columns == ["<start>", "Ein", " Hund", " ist", " da"]
