"""What a watch or an edit of any model says when it is asked for something that it cannot do."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.look import Notice
from support.foreign_models import build, inputs

pytestmark = pytest.mark.usefixtures("unchecked")  # wrong types are given on purpose
ATTN = "transformer.h.0.attn"


@pytest.fixture
def gpt2() -> nn.Module:
    return build("gpt2")


@pytest.fixture
def ids() -> Tensor:
    return inputs("gpt2")["input_ids"]


# What a module cannot show


@torch.no_grad()
def test_an_eager_model_says_why_queries_and_scores_are_not_recorded(ids):
    model = build("gpt2", "eager")
    reason = "its module computes its softmax itself"
    with (
        pytest.warns(Notice, match=rf"'{ATTN}.q', '{ATTN}.scores', .* and 1 more are not recorded: {reason}"),
        ch.watch(model, "**.q", "**.scores", "**.heads") as tape,
    ):
        model(ids)
    assert tape.names == [f"transformer.h.{i}.attn.heads" for i in range(2)]
    with pytest.raises(KeyError, match=reason):
        tape[f"{ATTN}.q"]


@torch.no_grad()
def test_all_activations_of_an_eager_model_give_no_notice_and_every_name_has_a_record(ids):
    model = build("gpt2", "eager")
    with ch.watch(model, "**") as tape:
        model(ids)
    assert f"{ATTN}.q" not in tape.names
    assert "transformer.h" not in tape.names  # a ModuleList, which never runs
    for name in tape.names:
        tape.calls(name)


# Tuples


def test_the_tensor_of_a_tuple_with_none_is_the_output(gpt2, ids):
    with ch.watch(gpt2, ATTN, "transformer.h.0.ln_2.input", "transformer.h.0.input", grad=True) as tape:
        gpt2(ids).logits.sum().backward()
    assert torch.equal(tape[ATTN] + tape["transformer.h.0.input"], tape["transformer.h.0.ln_2.input"])
    assert tape.gradient(ATTN).shape == tape[ATTN].shape
    with torch.no_grad():
        before = gpt2(ids).logits
        with ch.edit(gpt2, {ATTN: lambda x: 0 * x}):
            edited = gpt2(ids).logits
        with ch.edit(gpt2, {f"{ATTN}.c_proj": lambda x: 0 * x}):
            assert torch.equal(gpt2(ids).logits, edited)
    assert not torch.equal(edited, before)


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, 2 * x


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda pair: pair[0], r"given a tuple \(Tensor, Tensor\) and returned a Tensor"),
        (lambda pair: pair[:1], r"and returned a tuple \(Tensor\)"),
        (ch.look.silence([0]), "a tuple has no heads"),
    ],
)
def test_edits_of_a_tuple_keep_its_form(change, error):
    model = nn.Sequential(Pair())
    with pytest.raises((ValueError, TypeError), match=error), ch.edit(model, {"0": change}):
        model(torch.ones(1))
    with ch.edit(model, {"0": lambda pair: (pair[1], pair[0])}):
        assert torch.equal(model(torch.ones(1))[0], torch.full((1,), 2.0))


def test_a_tuple_of_tensors_has_no_gradient():
    model = nn.Sequential(Pair())
    with ch.watch(model, "0", grad=True) as tape:
        model(torch.ones(1, requires_grad=True))[0].sum().backward()
    with pytest.raises(ValueError, match=r"'0' is a tuple \(Tensor, Tensor\): expected one tensor"):
        tape.gradient("0")


# Nothing ran


def another(model: nn.Module, ids: Tensor) -> None:
    build("gpt2")(ids)


IDLE: dict[str, Callable[[Any, Any], Any]] = {"not called": lambda model, ids: None, "another model": another}


@pytest.mark.parametrize("address", [f"{ATTN}.heads", f"{ATTN}.c_proj"])
@pytest.mark.parametrize("case", IDLE)
def test_a_with_in_which_the_model_did_not_run(case, address, gpt2, ids):
    with pytest.raises(ValueError, match=f"the edit of '{address}' changed nothing: nothing that it names ran inside"):  # noqa: SIM117
        with ch.edit(gpt2, {address: torch.neg}):
            IDLE[case](gpt2, ids)
    reason = "nothing that it names ran" if address.endswith("c_proj") else "GPT2LMHeadModel was not called inside"
    with (
        pytest.warns(Notice, match=f"nothing was recorded at '{address}': .*{reason}"),
        ch.watch(gpt2, address) as tape,
    ):
        IDLE[case](gpt2, ids)
    with pytest.raises(KeyError, match=r"did not run it inside|was not called inside"):
        tape[address]


def test_a_module_that_does_not_run(gpt2, ids):
    never = f"{ATTN}.attn_dropout"  # SDPA does the dropout
    with pytest.raises(ValueError, match=f"the edit of '{never}' changed nothing"):  # noqa: SIM117
        with ch.edit(gpt2, {never: torch.neg}):
            gpt2(ids)
    with pytest.warns(Notice, match=f"nothing was recorded at '{never}'"), ch.watch(gpt2, never, "**.weights"):
        gpt2(ids)


def test_an_edit_of_our_own_model_that_did_not_run():
    model = ch.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2)
    with pytest.raises(ValueError, match="changed nothing"), ch.edit(model, {"**.heads": torch.neg}):
        pass


# Arguments


WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a list of addresses": (lambda m: ch.watch(m, ["**.weights"]), TypeError, "a list as an address: expected str"),
    "no address": (lambda m: ch.watch(m), ValueError, r"for example '\*\*\.weights'"),
    "a tensor": (lambda m: ch.edit(m, {f"{ATTN}.heads": torch.ones(1)}), TypeError, "is a Tensor: expected a function"),
    "two arguments": (
        lambda m: ch.edit(m, {f"{ATTN}.heads": lambda z, hook: z}),
        TypeError,
        "does not take one argument",
    ),
    "pairs": (lambda m: ch.edit(m, [(f"{ATTN}.heads", torch.neg)]), TypeError, "given a list: expected a dict"),
    "a statistic": (lambda m: ch.watch(m, "**.entorpy"), KeyError, r"the nearest is \*\*\.entropy"),
    "a layer": (lambda m: ch.watch(m, "transformer.h.7.*.heads"), KeyError, r"transformer\.h\.\*\.\*\.heads"),
    "hook_pattern": (lambda m: ch.watch(m, "blocks.0.attn.hook_pattern"), KeyError, r"is \.\.\.weights here"),
    "resid_pre": (lambda m: ch.watch(m, "blocks.0.resid_pre"), KeyError, r"hook_resid_pre .* a block with \.input"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case, gpt2):
    enter, error, message = WRONG[case]
    with pytest.raises(error, match=message), enter(gpt2):
        pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ch.look.silence(2), r"heads=2: expected a list of heads"),
        (lambda: ch.look.patch("1", torch.ones(1)), "heads='1': expected a list"),
        (lambda: ch.look.scale([1]), r"scale was given \[1\]: expected a dict"),
    ],
)
def test_wrong_heads(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_an_edit_keeps_the_dtype(gpt2, ids):
    with pytest.raises(ValueError, match=r"returned torch\.float64: expected torch\.float32"):  # noqa: SIM117
        with ch.edit(gpt2, {f"{ATTN}.heads": Tensor.double}):
            gpt2(ids)


# Reading a tape


@torch.no_grad()
def test_patterns_are_read_with_match(gpt2, ids):
    with ch.watch(gpt2, "**.weights") as tape:
        gpt2(ids)
    with pytest.raises(KeyError, match=r"is a pattern: expected one address, or tape\.match\('transformer\.h\.\*"):
        tape["transformer.h.*.attn.weights"]
    with pytest.raises(KeyError, match=r"not on this tape; the nearest are transformer\.h\.0\.attn\.weights"):
        tape["transformer.h.0.attn.entropy"]
    with pytest.raises(ValueError, match=r"weights is an AttentionMap: expected \(heads, .*such as \.dense\(\)\[0\]"):
        ch.draw.heads(tape["transformer.h.0.attn.weights"])


@pytest.mark.parametrize(
    ("leaf", "context", "message"),
    [
        ("heads", torch.no_grad(), "recorded without a graph: expected a model that runs with gradients"),
        ("entropy", nullcontext(), "is a measurement, which has no gradient"),
        ("heads", nullcontext(), "1 of 1 calls .* run backward"),
    ],
)
def test_why_there_is_no_gradient(leaf, context, message, gpt2, ids):
    with context, ch.watch(gpt2, f"{ATTN}.{leaf}", grad=True) as tape:
        gpt2(ids)
    with pytest.raises(ValueError, match=message):
        tape.gradient(f"{ATTN}.{leaf}")


# Notices


def test_the_notice_of_explicit_gradients_speaks_of_dropout_while_training(gpt2, ids):
    with pytest.warns(Notice, match="explicitly$"), ch.watch(gpt2, "**.weights", grad=True):
        gpt2(ids)
    gpt2.train()
    with pytest.warns(Notice, match="explicitly, which draws other dropout"), ch.watch(gpt2, "**.weights", grad=True):
        gpt2(ids)


def test_the_notice_of_the_fast_path_names_the_line_of_the_user():
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 3, 8)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad(), ch.watch(layer, "weights"):
        warnings.simplefilter("always")
        layer(x, x, x)
    assert [Path(one.filename).name for one in caught] == [Path(__file__).name]


# Texts


class Words:
    """As little of a tokenizer of transformers as look.attention needs: one token per word."""

    def __call__(self, text: str, return_tensors: str) -> dict[str, Tensor]:
        return {"input_ids": torch.ones(1, len(text.split()), dtype=torch.long)}

    def decode(self, ids: list[int]) -> str:
        return "word"


@pytest.mark.parametrize(
    ("text", "tokenizer", "message"),
    [
        ("a " * 70, Words(), "the text has 70 tokens: this model reads 64 at once"),
        ("", Words(), "the text is empty"),
        ("a", "gpt2", "tokenizer='gpt2': expected a tokenizer of transformers"),
        ("a", None, r"this GPT2LMHeadModel has no tokens: expected its tokenizer, as tokenizer=\.\.\."),
    ],
)
def test_texts_of_a_model_of_transformers(text, tokenizer, message, gpt2):
    with pytest.raises((ValueError, TypeError), match=message):
        ch.look.attention(gpt2, text, tokenizer=tokenizer)


def test_head_effects_of_a_model_of_transformers_advise_load(gpt2):
    with pytest.raises(
        ValueError, match="a model of transformers without its tokens: `load` opens a folder of transformers"
    ) as caught:
        ch.look.head_effects(gpt2, "a")
    assert "tokenizer" not in str(caught.value)
