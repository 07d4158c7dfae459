"""Every verb takes a model, its name or its folder; anything else, and what is no text, is refused with a sentence."""

import os

import pytest

import clearhead as ch
from clearhead.errors import InputError, InputTypeError

# A call with a model, by the name of a model that it fits.
CALLS = {
    "generate": ("everyday", lambda m: ch.generate(m, "The man", max_new=3).text),
    "stream": ("everyday", lambda m: "".join(ch.stream(m, "The man", max_new=3))),
    "score": ("everyday", lambda m: ch.score(m, "The man").logprob),
    "likelihood": ("everyday", lambda m: ch.likelihood(m, "The man").logprob),
    "embed": ("everyday", lambda m: ch.embed(m, "The man").tolist()),
    "view": ("everyday", lambda m: ch.view(m, "neighbours", "man").words),
    "evaluate": ("everyday", lambda m: ch.evaluate(m, "shakespeare", last=1e-4).perplexity),
    "quantise": ("everyday", lambda m: ch.quantise(m)("The man").tolist()),
    "fill": ("cloze", lambda m: ch.fill(m, "A [MASK] runs.")),
    "translate": ("fr-en", lambda m: ch.translate(m, "Je la mange.").text),
    "classify": ("vit-cifar10", lambda m: ch.classify(m, "cat", top=1)),
    "caption": ("captioner-rnn", lambda m: ch.caption(m, "church", beams=1, limit=2).text),
}


@pytest.mark.parametrize("verb", CALLS)
def test_a_model_may_be_given_by_its_name(verb):
    name, call = CALLS[verb]
    if verb == "evaluate" and not os.environ.get("CLEARHEAD_DATA"):
        pytest.skip("needs CLEARHEAD_DATA")
    bundle = ch.load(name)
    assert call(name) == call(bundle)


@pytest.mark.parametrize("verb", CALLS)
def test_what_is_no_model_is_refused(unchecked, verb):
    with pytest.raises(InputTypeError, match=r"a Linear is not a model: expected what clearhead.load returns"):
        CALLS[verb][1](ch.load("everyday").model.head)


def test_chat_takes_a_name_and_a_look_says_what_it_takes(unchecked):
    with pytest.raises(InputError, match="this model has no chat template"):
        ch.chat("everyday", [{"role": "user", "content": "Hello"}])
    with pytest.raises(InputTypeError, match=r"a str is not a model: expected what clearhead.load returns, or a torch"):
        ch.look.logit_lens("everyday", "The man")


@pytest.mark.parametrize("verb", [ch.generate, ch.stream, ch.score, ch.likelihood, ch.embed, ch.fill, ch.translate])
def test_what_is_no_text_is_refused(unchecked, verb):
    name = {ch.fill: "cloze", ch.translate: "fr-en"}.get(verb, "everyday")
    with pytest.raises(InputError, match=r"expected a string"):
        verb(name, 5)
