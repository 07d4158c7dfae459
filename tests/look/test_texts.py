"""A tape keeps texts apart and joins the decoding steps of each, also around a whole task."""

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead import watch
from clearhead.decode import Plan, search
from clearhead.layers import Cache
from clearhead.look import AttentionMap, Tape

PROMPTS = ["The man", "A dog runs over the green field", "Two", "I"]
SENTENCES = ["A dog runs.", "Two men are sitting on a bench in the park.", "Hello."]
NEW = 6  # tokens to write


@pytest.fixture(scope="module")
def everyday():
    return clearhead.load("everyday", device="cpu")


@pytest.fixture(scope="module", params=["en-de", "en-de-rnn"])
def translator(request):
    return clearhead.load(request.param, device="cpu")


def dense(record) -> Tensor:
    return record.dense() if isinstance(record, AttentionMap) else record


def assert_texts_are_those_alone(tape: Tape, texts: list[str], run) -> None:
    """Each text of the tape has the records that it has when the task gets this text only."""
    alone = []
    for text in texts:
        with watch(run.bundle, *tape.names) as one:
            run(text)
        alone.append(one)
    for name in tape.names:
        records = tape.texts(name)
        assert len(records) == len(texts), name
        for record, one in zip(records, alone, strict=True):
            assert torch.equal(dense(record), dense(one[name])), name


class Run:
    """A task with its model and options."""

    def __init__(self, task, bundle, **options) -> None:
        self.task, self.bundle, self.options = task, bundle, options

    def __call__(self, texts):
        return self.task(self.bundle, texts, **self.options)


LEAVES = ("weights", "received", "entropy", "q", "heads")


def test_prompts_of_different_lengths_are_recorded_one_by_one_in_their_order(everyday):
    run = Run(clearhead.generate, everyday, max_new=NEW)
    with watch(everyday, *(f"blocks.*.attn.{leaf}" for leaf in LEAVES), "blocks.1", "head") as tape:
        generations = run(PROMPTS)
    assert_texts_are_those_alone(tape, PROMPTS, run)
    sizes = [len(everyday.prompt(prompt)) + NEW - 1 for prompt in PROMPTS]  # the last token is written, and not read
    for name in ("blocks.0.attn.weights", "blocks.4.attn.weights"):
        assert [map.shape for map in tape.texts(name)] == [(1, 5, n, n) for n in sizes]
    assert [x.shape[1] for x in tape.texts("blocks.1")] == sizes
    assert [one.text for one in generations] == [run(prompt).text for prompt in PROMPTS]


def test_the_map_of_a_generation_is_that_of_one_pass_over_its_text(everyday):
    name = "blocks.3.attn.weights"
    with watch(everyday, name) as tape:
        generations = clearhead.generate(everyday, PROMPTS, max_new=NEW)
    for map, one in zip(tape.texts(name), generations, strict=True):
        with watch(everyday, name) as whole:
            everyday(one.prompt + one.text)
        n = map.shape[2]
        torch.testing.assert_close(map.dense(), whole[name].dense()[:, :, :n, :n], atol=1e-5, rtol=1e-4)
        assert map.received().sum() == pytest.approx(5 * n, rel=1e-4)


def test_one_token_texts_do_not_join(everyday):
    with watch(everyday, "blocks.0.attn.weights", "blocks.0.attn.q", "blocks.0") as tape:
        clearhead.generate(everyday, ["I", "I"], max_new=1)
    for name in tape.names:
        assert len(tape.texts(name)) == 2
        with pytest.raises(ValueError, match=rf"'{name}' was recorded for 2 texts: .* tape\.texts"):
            tape[name]


@pytest.mark.parametrize("leaf", LEAVES)
def test_one_token_calls_of_a_model_without_cache_do_not_join(everyday, leaf):
    name = f"blocks.0.attn.{leaf}"
    with torch.no_grad(), watch(everyday, name) as tape:
        for token in (5, 6):
            everyday.model(torch.tensor([[token]]))
    assert len(tape.texts(name)) == 2


def test_a_call_of_the_model_after_a_search_is_another_text(everyday):
    with torch.no_grad(), watch(everyday, "blocks.0.attn.weights", "blocks.0.attn.q", "blocks.0") as tape:
        clearhead.generate(everyday, "The man", max_new=2)
        everyday.model(torch.tensor([[5]]))
    for name in tape.names:
        assert len(tape.texts(name)) == 2


@pytest.mark.parametrize("beams", [1, 4])
def test_a_batch_of_translations_is_recorded_sentence_by_sentence(translator, beams):
    run = Run(clearhead.translate, translator, beams=beams)
    names = [f"decoder.blocks.0.cross.{leaf}" for leaf in LEAVES] + ["decoder.blocks.0", "decoder.blocks.0.cross"]
    if translator.name == "Transformer":
        names += [f"{side}.blocks.*.attn.{leaf}" for side in ("encoder", "decoder") for leaf in LEAVES]
    with watch(translator, *names) as tape:
        run(SENTENCES)
    assert_texts_are_those_alone(tape, SENTENCES, run)


def test_the_steps_of_a_greedy_translation_join_into_its_alignment(translator):
    """Also those of a recurrent decoder, whose attention gets one query at a time and no position."""
    name = "decoder.blocks.*.cross.weights"
    with watch(translator, name) as tape:
        translations = clearhead.translate(translator, SENTENCES, beams=1)
    for i, one in enumerate(translations):
        layers = [tape.texts(layer)[i].dense()[0].mean(0) for layer in tape.names]
        weights = torch.stack(layers).mean(0)
        torch.testing.assert_close(weights, torch.from_numpy(one.alignment), atol=1e-5, rtol=1e-4)


def test_in_a_beam_search_beams_are_rows_and_queries_of_a_shared_source(translator):
    with watch(translator, "decoder", "decoder.blocks.0.cross.weights") as tape:
        clearhead.translate(translator, SENTENCES[0], beams=4)
    steps = len(tape.calls("decoder"))
    source = len(translator.tokens.read(SENTENCES[0]))
    assert tape["decoder"].shape[:2] == (4, steps)
    map = tape["decoder.blocks.0.cross.weights"]
    assert (map.shape[0], *map.shape[2:]) == (1, 4 * steps, source)


@pytest.mark.parametrize("options", [{"beams": 3}, {"samples": 3, "seed": 1}], ids=["beams", "samples"])
def test_a_prompt_that_is_read_once_counts_for_all_its_beams_and_samples(everyday, options):
    prompt = " ".join(["The man is standing in front of a house"] * 12)  # long enough that its map stays lazy
    n = len(everyday.prompt(prompt)) + NEW - 1
    name = "blocks.0.attn.weights"
    with watch(everyday, name, "blocks.0.attn.entropy", "blocks.0.attn.received", "blocks.0") as tape:
        clearhead.generate(everyday, prompt, max_new=NEW, **options)
    (map,) = tape.texts(name)
    assert map.shape == (3, 5, n, n)
    torch.testing.assert_close(map.dense().sum(-1), torch.ones(3, 5, n), atol=1e-4, rtol=0)
    assert torch.equal(map.dense()[0, :, : n - NEW], map.dense()[2, :, : n - NEW])
    torch.testing.assert_close(map.entropy(), tape["blocks.0.attn.entropy"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(map.received(), tape["blocks.0.attn.received"], atol=1e-5, rtol=1e-4)
    assert tape["blocks.0"].shape[:2] == (3, n)


def test_rows_that_leave_a_batch_do_not_join_with_those_before(everyday):
    ended = {0: 2, 1: 4}  # the number of tokens after which each row ends
    plan = Plan(start=[[5, 6], [7, 8]], end=None, limit=6, ended=lambda row, ids, _: len(ids) == ended[row])
    with watch(everyday, "blocks.0.attn.weights", "blocks.0.attn.entropy", "blocks.0") as tape:
        search(everyday.model, {}, plan)
    for name in tape.names:
        assert len(tape.calls(name)) == 5
        with pytest.raises(ValueError, match=r"do not join.*: take them apart with tape\.calls"):
            tape[name]


@pytest.mark.parametrize("part", ["decoder", "decoder.blocks.0.cross"])
def test_a_search_announces_its_texts_to_watchers_of_a_part_of_the_model(part):
    bundle = clearhead.load("en-de", device="cpu")
    with watch(bundle.model.get_submodule(part), "**.q") as tape:
        clearhead.translate(bundle, SENTENCES, beams=2)
    assert [len(tape.texts(name)) for name in tape.names] == [3] * len(tape.names)


def test_a_search_on_another_model_begins_no_text(everyday):
    other = clearhead.load("everyday", device="cpu")
    block, cache = everyday.model.blocks[0], Cache(1, 5, 8, 32)
    with torch.no_grad(), watch(block, "attn.weights") as tape:
        for _ in range(3):
            block(torch.zeros(1, 1, 160), mask=cache.mask(), cache=cache)
            cache.advance(1)
            clearhead.generate(other, "I", max_new=1)
    assert tape["attn.weights"].shape == (1, 5, 3, 3)


def test_keep_last_keeps_the_last_step_only(everyday):
    with watch(everyday, "blocks.0.attn.weights", "blocks.0", keep="last") as tape:
        clearhead.generate(everyday, PROMPTS, max_new=NEW)
    assert [len(tape.calls(name)) for name in tape.names] == [1, 1]
    assert tape["blocks.0.attn.weights"].shape[2] == 1
