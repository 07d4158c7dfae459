"""generate, stream and chat: pieces against the whole, stop strings, seeds, and conversations."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.tasks.generate import chat, conversation, generate, stream
from clearhead.tokens import Characters, Subwords
from clearhead.weights import Bundle, Special

TEXT = "the cat sat on the mat. über den Zaun sprang 漢字 a cat — and another cat, the last. "


def bundle(tokens=None, seed: int = 0, context: int = 64, special: Special | None = None, **more) -> Bundle:
    tokens = tokens or Subwords.of([TEXT * 3], size=300)
    torch.manual_seed(seed)
    model = ch.build("gpt", vocab=len(tokens), width=16, depth=1, heads=2, context=context)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(5.0 if p.ndim > 1 else 1.0)
    return Bundle(model, tokens, model.config, special=special or Special(), **more)


TOKENS = {"subwords": None, "characters": Characters.of(TEXT)}
kinds = pytest.mark.parametrize("kind", TOKENS)


@kinds
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.5, "seed": 3}, {"top_k": 5, "seed": 1}, {"repetition": 2.0}], ids=str
)
def test_streamed_pieces_make_the_text_of_generate(kind, options):
    made = bundle(TOKENS[kind])
    whole = generate(made, "the cat", max_new=20, **options)
    assert "".join(stream(made, "the cat", max_new=20, **options)) == whole.text
    assert len(whole.pieces) == 20
    assert whole.ended == "limit"
    assert whole.prompt == "the cat"
    ids = [*made.tokens.encode("the cat"), *made.tokens.encode(whole.text)]
    if kind == "characters":
        assert len(ids) == 27


@kinds
def test_the_text_is_what_follows_the_prompt(kind):
    made = bundle(TOKENS[kind])
    for seed in range(5):
        found = generate(made, "the cat", max_new=9, temperature=2.0, seed=seed)
        start = made.tokens.encode("the cat")
        names = {piece: i for i, piece in enumerate(made.tokens.pieces(np.arange(len(made.tokens))))}
        written = [names[piece] for piece in found.pieces]
        assert "the cat" + found.text == made.tokens.decode([*start, *written])


def test_a_stop_string_ends_the_text_before_it():
    made = bundle(TOKENS["characters"])
    whole = generate(made, "the", max_new=30, temperature=2.0, seed=1).text
    for stop in (whole[4:6], whole[10], whole[2:9]):
        found = generate(made, "the", max_new=30, temperature=2.0, seed=1, stop=(stop, "neverthere"))
        assert found.text == whole[: whole.index(stop)]
        assert found.ended == "stop"
        # pieces and log-probability are those of the text, too
        assert found.pieces == list(found.text)
        same = generate(made, "the", max_new=max(len(found.text), 1), temperature=2.0, seed=1)
        assert found.logprob == pytest.approx(same.logprob if found.text else 0.0, abs=1e-4)
        pieces = list(stream(made, "the", max_new=30, temperature=2.0, seed=1, stop=stop))
        assert "".join(pieces) == found.text


def test_a_stop_string_cuts_the_pieces_of_every_sample_where_it_cuts_the_text():
    made = ch.load("everyday", device="cpu")
    options = {"max_new": 12, "temperature": 1.0, "samples": 3, "seed": 1}
    texts = ["The man", "A"]
    stopped = generate(made, texts, **options, stop="ar")
    for whole, found in zip(generate(made, texts, **options), stopped, strict=True):
        for plain, cut in zip((whole, *whole.others), (found, *found.others), strict=True):
            assert "".join(cut.pieces) == cut.text
            if "ar" not in plain.text:
                assert (cut.text, cut.pieces, cut.logprob) == (plain.text, plain.pieces, plain.logprob)
                continue
            assert (cut.text, cut.ended) == (plain.text.partition("ar")[0], "stop")
            count = len(cut.pieces)
            ids = [*made.tokens.encode(cut.prompt), *numbers_of(made, plain.pieces[:count])]
            with torch.no_grad():
                logp = made.model(torch.tensor([ids]))[0].log_softmax(-1)
            start = len(ids) - count
            expected = sum(float(logp[i - 1, ids[i]]) for i in range(start, len(ids)))
            assert cut.logprob == pytest.approx(expected, abs=1e-3)


def numbers_of(made: Bundle, pieces: list[str]) -> list[int]:
    names = {piece: i for i, piece in enumerate(made.tokens.pieces(np.arange(len(made.tokens))))}
    return [names[piece] for piece in pieces]


def test_half_a_character_is_never_streamed():
    made = bundle()
    for seed in range(8):
        pieces = list(stream(made, "the", max_new=40, temperature=3.0, seed=seed))
        whole = generate(made, "the", max_new=40, temperature=3.0, seed=seed).text
        assert "".join(pieces) == whole
        shown = "".join(pieces[:-1])
        assert whole.startswith(shown)


def test_a_batch_gives_the_samples_of_single_prompts_with_their_seeds():
    made = bundle()
    texts = ["the cat", "a", "on the mat. the cat"]
    options = {"max_new": 12, "temperature": 1.3}
    together = generate(made, texts, **options, seed=[4, 5, 6])
    for text, seed, found in zip(texts, (4, 5, 6), together, strict=True):
        alone = generate(made, text, **options, seed=[seed])
        assert (found.text, found.pieces) == (alone.text, alone.pieces)
        assert found.logprob == pytest.approx(alone.logprob, abs=1e-3)
    assert generate(made, [], **options) == []
    assert [g.text for g in generate(made, texts, **options, seed=4)] == [
        g.text for g in generate(made, texts, **options, seed=[4, 5, 6])
    ]


def test_samples_differ_and_their_seed_repeats_them():
    made = bundle()
    found = generate(made, "the", max_new=12, temperature=2.0, samples=4, seed=1)
    texts = [found.text, *(other.text for other in found.others)]
    assert len(set(texts)) == 4
    assert json.loads(json.dumps(found.to_dict()))["others"][2]["text"] == texts[3]
    again = generate(made, "the", max_new=12, temperature=2.0, samples=4, seed=1)
    assert [again.text, *(other.text for other in again.others)] == texts


def test_an_end_token_ends_the_text():
    plain = bundle()
    whole = generate(plain, "the", max_new=12)
    names = {piece: i for i, piece in enumerate(plain.tokens.pieces(np.arange(len(plain.tokens))))}
    end = names[whole.pieces[5]]
    first = whole.pieces.index(whole.pieces[5])
    made = bundle(special=Special(ends=(end,)))
    found = generate(made, "the", max_new=12)
    assert found.ended == "end"
    assert found.pieces == whole.pieces[:first]
    assert "".join(stream(made, "the", max_new=12)) == found.text
    assert generate(made, "", max_new=3).prompt == ""  # an empty prompt becomes the end token
    with pytest.raises(ValueError, match="the prompt is empty"):
        generate(plain, "")


def test_only_slide_continues_beyond_the_context():
    made = bundle(TOKENS["characters"], context=16)
    with pytest.raises(ValueError, match=r"a prompt of 7 tokens and 30 more: this model reads 16 at once.*slide=true"):
        generate(made, "the cat", max_new=30)
    found = generate(made, "the cat", max_new=30, slide=True)
    assert len(found.text) == 30
    assert "".join(stream(made, "the cat", max_new=30, slide=True)) == found.text
    assert len(generate(made, TEXT, max_new=5, slide=True).text) == 5


TEMPLATE = (
    "{% for m in messages %}<start>{{ m['role'] }}\n{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)


def test_a_conversation_is_rendered_by_its_template():
    made = bundle(chat=TEMPLATE)
    ids = conversation(made, [{"role": "user", "content": "a cat <end>"}])
    tokens = made.tokens
    assert ids[0] == tokens.start
    assert tokens.decode(ids) == "user\na cat \nassistant\n"
    assert ids.count(tokens.start) == 2
    answer = "".join(itertools.islice(chat(made, [{"role": "user", "content": "a cat"}], max_new=8), 20))
    assert isinstance(answer, str)
    with pytest.raises(ValueError, match="this model has no chat template"):
        conversation(bundle(), [])
    with pytest.raises(ValueError, match="cannot render this conversation: no system"):
        conversation(bundle(chat="{{ raise_exception('no system') }}"), [])
    with pytest.raises(ValueError, match="cannot render this conversation"):  # templates run in a sandbox
        conversation(bundle(chat="{{ ''.__class__.__mro__[1].__subclasses__() }}"), [])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_new": 0}, "max_new=0: expected 1 or more"),
        ({"samples": 0}, "samples=0"),
        ({"samples": 2, "temperature": 0.0}, "all would be the same"),
        ({"stop": ("", "a")}, "stop has an empty text"),
        ({"beams": 3, "top_k": 4}, "beams=3: a beam search does not sample"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"seed": (1, 2)}, "2 seeds for 1 texts"),
    ],
)
def test_impossible_options_raise(unchecked, options, problem):
    with pytest.raises(ValueError, match=problem):
        generate(bundle(), "the", **options)


def test_temperature_0_is_greedy_and_beams_are_no_worse():
    made = bundle()
    assert generate(made, "the", max_new=9, temperature=0.0).text == generate(made, "the", max_new=9).text
    assert generate(made, "the", max_new=5, beams=4).logprob >= generate(made, "the", max_new=5).logprob - 1e-5


def test_a_model_that_cannot_generate_raises():
    tokens = Characters.of(TEXT)
    model = ch.build("bert", vocab=len(tokens), width=8, depth=1, heads=2)
    with pytest.raises(ValueError, match="this BERT cannot generate: expected a GPT"):
        generate(Bundle(model, tokens, model.config), "the")


def padded():
    """A bundle whose model has many more outputs than its tokenizer has tokens."""
    own = TOKENS["characters"]
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=len(own) + 500, context=40, width=16, depth=1, heads=2)
    torch.nn.init.normal_(model.embed.table)
    return Bundle(model, own)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.5, "seed": 3},
        {"beams": 3},
        {"repetition": 1.3},
        {"temperature": 2.0, "top_k": 5, "seed": 1},
    ],
)
def test_outputs_that_stand_for_no_token_are_never_written(options):
    made = padded()
    assert list(made.spare_ids) == list(range(len(made.tokens), len(made.tokens) + 500))
    found = generate(made, "the", max_new=20, **options)
    assert len(found.pieces) == 20
    assert math.isfinite(found.logprob)
    if "beams" not in options:
        assert "".join(stream(made, "the", max_new=20, **options)) == found.text


def test_an_end_beyond_the_tokenizer_still_ends_a_text():
    made = padded()
    made = Bundle(made.model, made.tokens, special=Special(ends=(len(made.tokens) + 7,)))
    assert len(made.spare_ids) == 499
    assert len(made.tokens) + 7 not in made.spare_ids


def test_a_watch_and_an_edit_see_a_stream_that_is_read_after_them():
    made, name = bundle(), "blocks.0.attn.weights"
    silenced = {"blocks.0.attn.heads": ch.look.silence([0])}
    with ch.watch(made, name) as tape, ch.edit(made, silenced):
        pieces = stream(made, "the cat", max_new=3)
        whole = generate(made, "the cat", max_new=3)
    assert "".join(pieces) == whole.text
    streamed, generated = tape.texts(name)
    assert streamed.shape == generated.shape
