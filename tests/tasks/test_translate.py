"""translate: batches against single texts, alignments against the search, seeds, and the command."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from clearhead import Bundle, build
from clearhead.decode import Plan, search
from clearhead.inputs.batching import by_length
from clearhead.inputs.pairs import source_batch
from clearhead.look import watch
from clearhead.tasks import score, translate
from clearhead.tasks.translate import CROSS, Pass, given_translation, word_pieces
from clearhead.tokens import Pair, Subwords, Words
from clearhead.weights import save
from support.command_line import call

ENGLISH = ["A dog runs .", "The cat eats a mouse .", "Two dogs see the cat .", "A mouse sleeps ."] * 3
GERMAN = ["Ein Hund rennt .", "Die Katze frisst eine Maus .", "Zwei Hunde sehen die Katze .", "Eine Maus schläft ."] * 3


def bundle(family: str = "transformer", seed: int = 0, subwords: bool = False, **options) -> Bundle:
    torch.manual_seed(seed)
    kind = (lambda texts: Subwords.of(texts, size=300)) if subwords else Words.of
    tokens = Pair(kind(ENGLISH), kind(GERMAN))
    sizes = {"vocab": len(tokens.source), "target_vocab": len(tokens.target), "width": 16, "depth": 2, "context": 24}
    if family == "transformer":
        sizes |= {"heads": 2}
    else:
        sizes |= {"hidden": 12, "depth": 1}
    model = build(family, **{**sizes, **options})
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    return Bundle(model, tokens, model.config)


FAMILIES = {
    "transformer": {},
    "rnn-seq2seq": {"attention": "additive"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_the_translations_of_single_texts(family):
    made = bundle(family, **FAMILIES[family])
    together = translate(made, ENGLISH[:4], beams=3)
    assert isinstance(together, list)
    for text, found in zip(ENGLISH, together, strict=False):
        single = translate(made, text, beams=3)
        assert single.text == found.text
        assert single.score == pytest.approx(found.score, abs=1e-4)
        assert single.source == found.source == [*text.split(), "<end>"]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_translation_has_its_own_alignment(family):
    made = bundle(family, **FAMILIES[family])
    found = translate(made, ENGLISH[1], beams=4, best=3)
    assert len(found.others) == 2
    for one in (found, *found.others):
        assert one.alignment.shape == (len(one.target), len(one.source))
        np.testing.assert_allclose(one.alignment.sum(1), 1.0, rtol=1e-5)
    mean = np.mean([found.attention(head=h) for h in range(2)], 0) if family == "transformer" else found.attention(0)
    np.testing.assert_allclose(mean, found.alignment, rtol=1e-5)


def test_the_alignment_is_the_attention_during_the_search():
    made = bundle()
    ids = made.tokens.read(ENGLISH[1])
    inputs = source_batch(made, [ids])
    with watch(made.model, CROSS) as tape:
        (hypothesis,) = search(made.model, inputs, Plan(start=1, end=2, limit=6, banned=(0, 1)))[0]
    written = [*hypothesis.ids, 2] if hypothesis.finished else list(hypothesis.ids)
    seen = np.mean([tape[name].dense()[0].mean(0).numpy() for name in tape.names], 0)[: len(written)]
    tape = Pass(made, ids, written).watch(CROSS)
    forced = np.mean([tape[name].dense()[0].mean(0).numpy() for name in tape.names], 0)
    np.testing.assert_allclose(forced, seen, atol=1e-5)


def test_an_alignment_has_no_padding():
    made = bundle()
    short, long = translate(made, ["A dog .", ENGLISH[2]], beams=2)
    assert short.alignment.shape[1] == 4 < long.alignment.shape[1]


def test_score_gives_the_log_probability_of_translate():
    made = bundle(subwords=True)
    found = translate(made, ENGLISH[0], beams=4, limit=40)
    if not found.cut:
        again = score(made, ENGLISH[0], found.text)
        assert again.logprob == pytest.approx(found.logprob, abs=1e-3)
    given = score(made, ENGLISH[0], GERMAN[0])
    assert given.text == GERMAN[0]
    assert given.alignment.shape == (len(given.target), len(given.source))
    assert given.logprob < 0


def test_a_given_translation_may_be_unfinished():
    made = bundle(subwords=True)
    ids = made.tokens.written(GERMAN[0]).tolist()
    whole, part = (given_translation(made, ENGLISH[0], some) for some in (ids, ids[:3]))
    assert whole.logprob == pytest.approx(score(made, ENGLISH[0], GERMAN[0]).logprob, abs=1e-5)
    assert (whole.cut, part.cut) == (False, True)
    assert part.target == whole.target[:3]
    assert part.alignment == pytest.approx(whole.alignment[:3], abs=1e-5)
    for wrong in ([], [10**6], [-1]):
        with pytest.raises(ValueError, match="expected"):
            given_translation(made, ENGLISH[0], wrong)


def test_an_alignment_is_written_with_six_digits():
    found = translate(bundle(), ENGLISH[0])
    rows = found.to_dict()["alignment"]
    np.testing.assert_allclose(rows, found.alignment, atol=1e-6)
    assert max(len(repr(weight)) for row in rows for weight in row) <= len("0.123456")


def test_the_alignment_of_a_model_without_attention_raises():
    made = bundle("rnn-seq2seq", attention="none")
    found = translate(made, ENGLISH[0], beams=2)
    with pytest.raises(ValueError, match="no attention to its source"):
        found.alignment  # noqa: B018


def test_batches_hold_rows_of_similar_length():
    lengths, model = [3, 900, 4, 1000, 5], torch.nn.Linear(1, 1)
    assert by_length(lengths, model, 2048) == [[3, 1], [4, 2, 0]]
    assert by_length(lengths, model, 1) == [[3], [1], [4], [2], [0]]
    with pytest.raises(ValueError, match="batch_tokens=0: expected 1 or more"):
        by_length(lengths, model, 0)
    model.register_forward_hook(lambda *_: None)
    assert by_length(lengths, model, 2048) == [[0], [1], [2], [3], [4]]  # watched: one by one, in their order


def test_a_model_that_cannot_translate_raises():
    model = build("gpt", vocab=9, width=8, heads=2, depth=1)
    with pytest.raises(ValueError, match="this GPT cannot translate"):
        translate(Bundle(model, None, model.config), "A dog runs.")


def test_a_layer_or_head_that_does_not_exist_raises():
    found = translate(bundle(), ENGLISH[0])
    with pytest.raises(ValueError, match="layer=2: there are 2"):
        found.attention(layer=2)
    with pytest.raises(ValueError, match="head=5: there are 2"):
        found.attention(head=5)


def test_sampling_uses_a_fresh_seed_each_time_and_reports_it():
    made, texts = bundle(), [ENGLISH[0], " ", ENGLISH[1]]
    results = [translate(made, texts, sample=True, temperature=2.0) for _ in range(3)]
    assert len({one.text for one, _, _ in results}) == len({one.seed for one, _, _ in results}) == 3
    for first, empty, second in results:
        assert empty.seed is None
        for text, one in ((ENGLISH[0], first), (ENGLISH[1], second)):  # each seed gives its text again
            again = translate(made, text, sample=True, temperature=2.0, seed=one.seed, best=2)
            assert (again.text, again.seed, again.others[0].seed) == (one.text, one.seed, one.seed)
            assert one.to_dict()["seed"] == one.seed
    assert [one.text for one in results[0]] != [one.text for one in results[1]]
    same = [translate(made, texts, sample=True, temperature=2.0, seed=7, batch_tokens=n) for n in (1, 2048)]
    assert [one.text for one in same[0]] == [one.text for one in same[1]]  # batching does not change a sample


def test_searching_needs_no_seed():
    made = bundle()
    for beams in (1, 3):
        found = translate(made, ENGLISH[0], beams=beams)
        assert found.seed is None
        assert found.to_dict()["seed"] is None
        assert found.text == translate(made, ENGLISH[0], beams=beams, seed=5).text


def test_the_command_prints_one_line_per_text(tmp_path):
    made = bundle()
    save(made, tmp_path / "model")
    (tmp_path / "in.txt").write_text("A dog runs .\n\nThe cat .\n")
    command = ["translate", str(tmp_path / "model")]
    got = call(*command, tmp_path / "in.txt", "beams=2")
    lines = got.stdout.splitlines()
    assert len(lines) == 3
    assert lines[1] == ""
    assert lines[0] == translate(made, "A dog runs .", beams=2).text
    bad = call(*command, "A dog .", "baems=2")
    assert bad.exit_code == 1
    assert "unknown key baems; the nearest is beams" in bad.stderr


@pytest.mark.parametrize(("subwords", "verb"), [(False, "eats"), (True, "mouses")])
def test_attention_between_words_sums_that_of_their_pieces(subwords, verb):
    made = bundle(subwords=subwords)
    text = f"The cat {verb} a mouse ."
    found = score(made, text, "Die Katze frisst eine Maus .")
    source, target, weights = found.by_word(layer=1, head=0)
    assert source == [*text.split(), "<end>"]
    assert target == ["Die", "Katze", "frisst", "eine", "Maus", ".", "<end>"]
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-5)
    pieces = found.attention(1, 0)
    reads = [[i for i, w in enumerate(made.tokens.source.words(text)) if w == n] for n in range(6)]
    writes = [i for i, w in enumerate(made.tokens.target.words("Die Katze frisst eine Maus .")) if w == 1]
    assert subwords == (len(reads[2]) > 1)  # which it has never seen
    np.testing.assert_allclose(weights[1, 2], pieces[writes][:, reads[2]].sum(1).mean(), rtol=1e-5)


def test_white_space_belongs_to_the_word_after_it():
    assert word_pieces([" ", "dog", "s", " ", "!", "<end>"], [-1, 0, 0, -1, 1, -1]) == [[0, 1, 2], [3, 4], [5]]
    assert word_pieces(["a", "b", " "], [0, 1, -1]) == [[0], [1], [2]]
    assert word_pieces([], []) == []


def test_loading_and_translating_do_not_import_torchs_compiler():
    """It takes a second, of the two that a translation from the command line takes."""
    code = (
        "import sys, clearhead as ch\n"
        "text = ch.translate(ch.load('en-de', device='cpu'), 'A dog runs.').text\n"
        "print(text, [name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "Ein Hund rennt. []\n"
