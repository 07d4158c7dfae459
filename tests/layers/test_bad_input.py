"""Bad input raises an error that names what was given and what was expected.

In tests, shapes, types and words of every call are checked before the library's own code runs. The calls that this
checker would refuse are made without it, as users make them, by running this file as a script.
"""

import json
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from clearhead import edit, watch
from clearhead.errors import UserError
from clearhead.layers import (
    MLP,
    NORMS,
    POSITIONS,
    PROJECTIONS,
    SCORES,
    Alibi,
    Attention,
    Bias,
    Block,
    Cache,
    Learned,
    Mask,
    Memory,
    Patches,
    Recurrent,
    Relative,
    Rotary,
    SinCos2d,
    Sinusoid,
    Stack,
    attend,
    make_norm,
    make_positions,
    resize,
)
from clearhead.layers.block import ORDERS
from clearhead.layers.embed import PATCH_POSITIONS
from clearhead.layers.mlp import ACTIVATIONS, KINDS
from clearhead.layers.positions.rotary import SCALINGS
from clearhead.layers.positions.vectors import JOINS, PAIRS
from clearhead.layers.recurrent import CELLS
from clearhead.layers.stack import CONNECTIONS
from clearhead.look import MEANING, AttentionMap, patch, scale, silence
from clearhead.look.maps.call import DenseCall, LazyCall

B, H, T, E = 2, 3, 7, 4
WIDTH = H * E
NAN = float("nan")


def x(tokens: int = T, width: int = WIDTH) -> Tensor:
    return torch.zeros(B, tokens, width)


def ask(q: int = T, k: int = T, *, h: int = H, g: int = H, e: int = E, f: int = E, values: int | None = None, **more):
    """attend() to zeros of these sizes."""
    q, v = torch.zeros(B, h, q, e), torch.zeros(B, g, k if values is None else values, E)
    return attend(q, torch.zeros(B, g, k, f), v, **more)


def allow(*shape: int) -> Mask:
    return Mask(allow=torch.ones(shape, dtype=torch.bool))


def documents(*shape: int) -> Mask:
    return Mask(documents=torch.zeros(shape, dtype=torch.long))


def bias(**parts: int) -> Bias:
    """A bias by distance: positions q_at and k_at of these lengths, and a slope or a table of this many heads."""
    at = {name: torch.arange(parts.get(name, T)) for name in ("q_at", "k_at")}
    if "table" in parts:
        return Bias(**at, table=torch.zeros(parts["table"], 5))
    return Bias(**at, slope=torch.zeros(parts.get("slope", H)))


def positions(kind: str, **more):
    return make_positions(kind, width=WIDTH, heads=H, head=E, context=T, **more)


def append(k: tuple[int, ...], v: tuple[int, ...] | None = None, used: int = 0):
    """Append to a cache of 2 rows, 3 heads, 8 tokens and head dimension 4."""
    cache = Cache(B, H, 8, E)
    cache.advance(used)
    return cache.append(torch.zeros(k), torch.zeros(v or k))


def edited(leaf: str, change):
    model = Block(WIDTH, H)
    with edit(model, {leaf: change}):
        return model(x())


def take_one(y: Tensor) -> Tensor:
    return y[:1]


def patched(head: int, tokens: int = T):
    return patch([head], torch.zeros(B, H, tokens, E))


def watched(*names: str, model=None, **more):
    with watch(model or Block(WIDTH, H), *names, **more) as tape:
        return tape


def several() -> nn.ModuleList:
    return nn.ModuleList(Attention(WIDTH, H) for _ in range(2))


def map(q: int = 5, k: int = T) -> AttentionMap:
    return AttentionMap(
        [LazyCall(q=torch.zeros(B, H, q, E), k=torch.zeros(B, H, k, E), mask=Mask(), bias=None, scale=1.0)]
    )


one_head = DenseCall(weights=torch.ones(B, 1, 1, 1))

# What takes a word, and the words that it takes: the error about an unknown word lists them all.
WORDS = {
    "score": (lambda word: Attention(8, 2, score=word), SCORES),
    "score of attend": (lambda word: ask(score=word), SCORES),
    "score of a block": (lambda word: Block(8, 2, score=word), SCORES),
    "project": (lambda word: Attention(8, 2, project=word), PROJECTIONS),
    "project of a block": (lambda word: Block(8, 2, project=word), PROJECTIONS),
    "positions": (positions, POSITIONS),
    "positions of patches": (lambda word: Patches(8, positions=word), PATCH_POSITIONS),
    "join": (lambda word: Sinusoid(8, join=word), JOINS),
    "join of made positions": (lambda word: positions("learned", join=word), JOINS),
    "pairs": (lambda word: Rotary(4, pairs=word), PAIRS),
    "scaling": (lambda word: Rotary(4, scaling=word), SCALINGS),
    "norm": (lambda word: make_norm(word, 8), NORMS),
    "norm of a block": (lambda word: Block(8, 2, norm=word), NORMS),
    "norm of a stack": (lambda word: Stack(8, 2, norm=word), NORMS),
    "mlp": (lambda word: MLP(8, kind=word), KINDS),
    "mlp of a block": (lambda word: Block(8, 2, mlp=word), KINDS),
    "order": (lambda word: Block(8, 2, order=word), ORDERS),
    "connect": (lambda word: Stack(8, 2, connect=word), CONNECTIONS),
    "activation": (lambda word: Stack(8, 2, activation=word), ACTIVATIONS),
    "cell": (lambda word: Recurrent(8, cell=word), CELLS),
    "statistic": (lambda word: map().statistics("entropy", word), MEANING),
}

# What is wrong: the call, the class of its error, and what the message must contain.
WRONG = {
    # the sizes of an attention
    "no kv_heads": (lambda: Attention(8, 4, kv_heads=0), ValueError, "kv_heads=0", "1 or more"),
    "fewer than no kv_heads": (lambda: Attention(8, 4, kv_heads=-2), ValueError, "kv_heads=-2", "1 or more"),
    "no context": (lambda: Attention(8, 2, context=0), ValueError, "context=0", "1 or more"),
    "more than all dropped": (lambda: Attention(8, 2, dropout=1.5), ValueError, "dropout=1.5", "from 0"),
    "width over heads": (lambda: Attention(8, 3), ValueError, "width=8", "heads=3", "give head"),
    "no heads": (lambda: Attention(8, 0), ValueError, "heads=0", "1 or more"),
    "no width": (lambda: Attention(0, 1), ValueError, "width=0", "1 or more"),
    "heads over kv_heads": (lambda: Attention(8, 4, kv_heads=3), ValueError, "heads=4", "kv_heads=3", "multiple"),
    "k=v, widths": (lambda: Attention(8, 2, project="k=v", value=3), ValueError, "k=v", "head=4", "value=3", "equal"),
    "q=k=v, widths": (lambda: Attention(8, 2, project="q=k=v", value=5), ValueError, "q=k=v", "head=4", "value=5"),
    "q=k, context": (lambda: Attention(8, 2, project="q=k", context=6), ValueError, "q=k", "context=6", "width=8"),
    "q=k, groups": (lambda: Attention(8, 2, project="q=k", kv_heads=1), ValueError, "q=k", "kv_heads=1", "heads=2"),
    "none, head": (lambda: Attention(8, 2, project="none", head=3), ValueError, "none", "heads x head = 6", "got 8"),
    "none, context": (lambda: Attention(8, 2, project="none", context=6), ValueError, "none", "= 8", "got 8, 6"),
    "none, groups": (lambda: Attention(8, 4, project="none", kv_heads=2), ValueError, "none", "kv_heads x head = 4"),
    "raw values": (lambda: Attention(8, 4, project="qk", context=6), ValueError, "values of width 6", "4 heads"),
    "heads over groups": (lambda: ask(h=3, g=2), ValueError, "3 query heads", "2 key heads", "multiple"),
    "widths of q and k": (lambda: ask(f=5), ValueError, "width 4", "width 5", "equal", "Bilinear"),
    "a block without its context": (lambda: Block(8, 2, cross=True)(x(width=8)), ValueError, "needs a context"),
    "a context too many": (lambda: Block(8, 2)(x(width=8), x(width=8)), ValueError, "cross=True"),
    # masks
    "window 0": (lambda: Mask(window=0), ValueError, "window=0", "1 or more"),
    "window -2": (lambda: Mask(window=-2), ValueError, "window=-2", "1 or more"),
    "window 0 of a cache": (lambda: Cache(1, 1, 4, 4).mask(window=0), ValueError, "window=0", "1 or more"),
    "a negative length": (lambda: Mask(lengths=-1), ValueError, "lengths", "-1", "0 or more"),
    "a negative length among others": (lambda: Mask(lengths=[3, -1]), ValueError, "lengths", "-1", "0 or more"),
    "a negative offset": (lambda: Mask(offset=-2), ValueError, "offset", "-2", "0 or more"),
    "a negative offset among others": (lambda: Mask(offset=torch.tensor([-2, 1])), ValueError, "offset", "-2"),
    "float lengths": (lambda: Mask(lengths=torch.ones(2)), ValueError, "lengths", "float32", "integers (batch,)"),
    "boolean lengths": (lambda: Mask(lengths=torch.ones(2) > 0), ValueError, "lengths", "bool", "integers (batch,)"),
    "a float offset": (lambda: Mask(offset=torch.ones(2)), ValueError, "offset", "float32", "integers (batch,)"),
    "lengths of two axes": (lambda: Mask(lengths=torch.tensor([[3], [1]])), ValueError, "(2, 1)", "(batch,)"),
    "a length too long": (lambda: ask(mask=Mask(lengths=8)), ValueError, "lengths", "8", "7 keys"),
    "a length too long among others": (lambda: ask(mask=Mask(lengths=[3, 9])), ValueError, "lengths", "9", "7 keys"),
    "rows of lengths": (lambda: ask(mask=Mask(lengths=[1, 2, 3])), ValueError, "lengths", "3 rows", "expected 2"),
    "rows of offset": (lambda: ask(mask=Mask(offset=[1, 2, 3])), ValueError, "offset", "3 rows", "expected 2"),
    "rows of documents": (lambda: ask(mask=documents(3, T)), ValueError, "documents", "(3, 7)", "(2, 7)"),
    "keys of documents": (lambda: ask(mask=documents(1, 6)), ValueError, "documents", "(1, 6)", "(2, 7)"),
    "queries of allow": (lambda: ask(mask=allow(4, T)), ValueError, "allow", "(4, 7)", "(2, 3, 7, 7)"),
    "heads of allow": (lambda: ask(mask=allow(2, 1, 1)), ValueError, "allow", "(2, 1, 1)", "(2, 3, 7, 7)"),
    "axes of allow": (lambda: ask(mask=allow(1, 1, 1, 1, 1)), ValueError, "allow", "(1, 1, 1, 1, 1)", "(2, 3, 7, 7)"),
    "a causal chunk": (lambda: ask(2, mask=Mask(causal=True)), ValueError, "2 queries over 7 keys", "offset=5"),
    "a window's chunk": (lambda: ask(2, mask=Mask(window=3)), ValueError, "2 queries over 7 keys", "offset=5"),
    "a document's chunk": (lambda: ask(2, mask=documents(1, T)), ValueError, "2 queries over 7 keys", "offset=5"),
    # biases
    "queries of a bias": (lambda: ask(bias=torch.zeros(4, T)), ValueError, "bias", "(4, 7)", "(2, 3, 7, 7)"),
    "heads of a bias": (lambda: ask(bias=torch.zeros(2, T, T)), ValueError, "bias", "(2, 7, 7)", "(2, 3, 7, 7)"),
    "axes of a bias": (lambda: ask(bias=torch.zeros(1, 1, 1, T, T)), ValueError, "(1, 1, 1, 7, 7)", "(2, 3, 7, 7)"),
    "heads of a slope": (lambda: ask(bias=bias(slope=2)), ValueError, "slope", "2 heads", "expected 3"),
    "heads of a table": (lambda: ask(bias=bias(table=2)), ValueError, "table", "2 heads", "expected 3"),
    "places of queries": (lambda: ask(bias=bias(q_at=4)), ValueError, "q_at", "(4,)", "(7,)"),
    "places of keys": (lambda: ask(bias=bias(k_at=4)), ValueError, "k_at", "(4,)", "(7,)"),
    "heads of ALiBi": (lambda: Attention(12, 3)(x(), positions=Alibi(2)), ValueError, "2 heads", "expected 3"),
    # positions
    "an odd head": (lambda: Rotary(5), ValueError, "head=5", "even"),
    "another head": (lambda: Attention(12, 3)(x(), positions=Rotary(6)), ValueError, "width 4", "turn 6"),
    "yarn without context": (lambda: Rotary(4, scaling="yarn"), ValueError, "yarn", "context"),
    "llama3 without context": (lambda: Rotary(4, scaling="llama3"), ValueError, "llama3", "context"),
    "a shrunken context": (lambda: Rotary(4, scaling="linear", factor=0.5), ValueError, "factor=0.5", "1 or more"),
    "past the table": (lambda: Learned(12, 6).add(x()), ValueError, "position 6", "0 to 5"),
    "before the table": (lambda: Learned(12, 9).add(x(), torch.arange(-1, 6)), ValueError, "position -1", "0 to 8"),
    "positions of another width": (lambda: Sinusoid(8).add(x()), ValueError, "width 8", "width 12"),
    "sincos2d of a width": (lambda: SinCos2d(6), ValueError, "width=6", "multiple of 4"),
    "sincos2d of no grid": (lambda: SinCos2d(12).add(x()), ValueError, "7 tokens", "at=grid(y, x)"),
    "sincos2d of a line": (lambda: SinCos2d(12).add(x(), torch.arange(7)), ValueError, "(7,)", "(..., 2)"),
    "an empty bias": (lambda: Bias(), ValueError, "dense", "q_at and k_at"),
    "a slope without places": (lambda: Bias(slope=torch.ones(2)), ValueError, "q_at and k_at"),
    "patches of a width": (lambda: Patches(6, positions="sincos2d"), ValueError, "width=6", "multiple of 4"),
    "ALiBi of no heads": (lambda: Alibi(0), ValueError, "heads=0", "1 or more"),
    "few buckets": (lambda: Relative(2, buckets=3), ValueError, "buckets=3", "at least 4"),
    "few buckets of a decoder": (lambda: Relative(2, buckets=1, causal=True), ValueError, "buckets=1", "at least 2"),
    "a short reach": (lambda: Relative(2, buckets=32, reach=8), ValueError, "reach=8", "first 8"),
    "joined rotary": (lambda: positions("rotary", join="concatenate"), ValueError, "concatenate", "rotary", "sinusoid"),
    # caches
    "a full cache": (lambda: append((B, H, 3, E), used=6), ValueError, "3 more tokens after 6", "holds 8"),
    "rows of a cache": (lambda: append((1, H, 3, E)), ValueError, "(1, 3, 3, 4)", "(2, 3, 8, 4)"),
    "heads of a cache": (lambda: append((B, 2, 3, E)), ValueError, "(2, 2, 3, 4)", "(2, 3, 8, 4)"),
    "keys of a cache": (lambda: append((B, H, 3, 5), (B, H, 3, E)), ValueError, "(2, 3, 3, 5)", "(2, 3, 8, 4)"),
    "values of a cache": (lambda: append((B, H, 3, E), (B, H, 3, 5)), ValueError, "(2, 3, 3, 5)", "(2, 3, 8, 4)"),
    # the other layers
    "an image's height": (lambda: Patches(8, patch=4, grid=2)(torch.zeros(1, 3, 9, 8)), ValueError, "9 x 8", "4 x 4"),
    "an image's width": (lambda: Patches(8, patch=(4, 2))(torch.zeros(1, 3, 8, 7)), ValueError, "8 x 7", "4 x 2"),
    "no image": (lambda: Patches(8, patch=4).size(0, 8), ValueError, "0 x 8", "4 x 4"),
    "not a grid": (lambda: resize(torch.zeros(6, 3), (2, 2), (3, 3)), ValueError, "6 positions", "2 x 2"),
    "memory's width": (lambda: Memory(8, 3), ValueError, "width=8", "heads=3"),
    "gamma 0": (lambda: Memory(8, gamma=0.0), ValueError, "gamma=0.0", "(0, 1]"),
    "gamma over 1": (lambda: Memory(8, 2, gamma=[0.5, 1.1]), ValueError, "1.1", "(0, 1]"),
    "gamma NaN": (lambda: Memory(8, gamma=NAN), ValueError, "nan", "(0, 1]"),
    "gammas": (lambda: Memory(8, 2, gamma=[0.5] * 3), ValueError, "3 gammas", "2 heads"),
    "gamma 1 that learns": (lambda: Memory(8, 2, gamma=[0.5, 1.0], learned=True), ValueError, "gamma=1", "below 1"),
    "an empty row": (lambda: Recurrent(12)(x(), lengths=[0, 5]), ValueError, "from 0 to 5", "1 to 7"),
    "a row too long": (lambda: Recurrent(12)(x(), lengths=[3, 8]), ValueError, "from 3 to 8", "1 to 7"),
    # watching and editing
    "watch nothing": (lambda: watched(), ValueError, "at least one", "**.weights"),
    "watch what is not there": (lambda: watched("attn.wieghts"), KeyError, "'attn.wieghts'", "attn.weights"),
    "the second name": (lambda: watched("mlp", "atn.*"), KeyError, "'atn.*'"),
    "a name in a list": (lambda: watched("0.haeds", model=several()), KeyError, "'0.haeds'", "0.heads"),
    "half a segment": (lambda: watched("at*.weights"), KeyError, "'at*.weights'", "attn.weights"),
    "watch what is no module": (lambda: watched("mlp", model=[1]), TypeError, "torch module", "clearhead.load", "list"),
    "edit what is not there": (lambda: edited("attn.haeds", abs), KeyError, "'attn.haeds'", "attn.heads"),
    "edit a measurement": (lambda: edited("attn.entropy", abs), ValueError, "attn.entropy", "measurement", "scores"),
    "edit to nothing": (lambda: edited("attn.heads", lambda y: None), ValueError, "heads", "None", "(2, 3, 7, 4)"),
    "edit a module to nothing": (lambda: edited("mlp", lambda y: None), ValueError, "mlp", "None", "(2, 7, 12)"),
    "edit a module's shape": (lambda: edited("mlp", take_one), ValueError, "mlp", "(1, 7, 12)", "(2, 7, 12)"),
    **{
        f"edit the shape of {leaf}": (lambda leaf=f"attn.{leaf}": edited(leaf, take_one), ValueError, leaf, "(1, 3, 7")
        for leaf in ("q", "k", "v", "scores", "weights", "heads")
    },
    "silence a head too many": (lambda: edited("attn.heads", silence([0, 3])), IndexError, "[3]", "there are 3"),
    "scale a head below 0": (lambda: edited("attn.heads", scale({-1: 2.0})), IndexError, "[-1]", "there are 3"),
    "patch a head too many": (lambda: edited("attn.heads", patched(5)), IndexError, "[5]", "there are 3"),
    "patch another shape": (lambda: edited("attn.heads", patched(1, 6)), ValueError, "(2, 3, 6, 4)", "(2, 3, 7, 4)"),
    # maps
    "a row too far": (lambda: map().row(5), IndexError, "query 5", "there are 5"),
    "a row too far back": (lambda: map().row(-6), IndexError, "query -6", "there are 5"),
    "rows of a tile": (lambda: map().tile((0, 6), (0, 7)), IndexError, "rows 0..6", "0..5"),
    "keys of a tile": (lambda: map().tile((0, 5), (-1, 7)), IndexError, "keys -1..7", "0..7"),
    "an empty tile": (lambda: map().tile((2, 2), (0, 7)), IndexError, "rows 2..2", "0..5"),
    "top of none": (lambda: map().top(0), ValueError, "top(0)", "7 keys"),
    "top of too many": (lambda: map().top(8), ValueError, "top(8)", "7 keys"),
    "pool into none": (lambda: map().pool(0), ValueError, "pool(0)", "1 or more"),
    "pool into no columns": (lambda: map().pool((2, 0)), ValueError, "pool((2, 0))", "1 or more"),
    "mass of a key too many": (lambda: map().mass([0, 7]), IndexError, "from 0 to 7", "there are 7"),
    "mass of a key before the first": (lambda: map().mass([-1]), IndexError, "from -1", "there are 7"),
    "mass of other keys": (lambda: map().mass(torch.ones(5) > 0), ValueError, "(5,)", "(7,)"),
    "a dense map too large": (lambda: map().dense(limit=100), ValueError, "2 x 3 x 5 x 7", "210", "100", "tile"),
    "a grid of other tokens": (lambda: map(7).distance(grid=(2, 3)), ValueError, "7 queries", "2 x 3 = 6"),
    "a grid of other special tokens": (lambda: map(7).distance(grid=(2, 3), special=2), ValueError, "2 special", "= 6"),
    "a grid of other queries": (lambda: map(6).distance(grid=(2, 3)), ValueError, "6 queries and 7 keys", "2 x 3"),
    "no calls": (lambda: AttentionMap([]), ValueError, "at least one call"),
    "calls of other heads": (lambda: AttentionMap([map().sources[0], one_head]), ValueError, "(2, 1), (2, 3)", "join"),
    "a name on no tape": (lambda: watched("mlp")["mpl"], KeyError, "'mpl'", "mlp"),
    "a name that did not speak": (lambda: watched("mlp")["mlp"], KeyError, "nothing was recorded", "'mlp'"),
    "gradients that were not kept": (lambda: watched("mlp").gradient("mlp"), ValueError, "grad=True"),
}  # fmt: skip

# The same for calls that a type checker refuses.
UNCHECKED = {
    "q of three axes": (lambda: attend(x(), x(), x()), ValueError, "q", "(2, 7, 12)", "(batch, heads, tokens, width)"),
    "values for other keys": (lambda: ask(values=6), ValueError, "(2, 3, 7, 4)", "(2, 3, 6, 4)", "for every key"),
    "float length": (lambda: Mask(lengths=2.5), ValueError, "lengths=2.5", "expected an int"),
    "float documents": (lambda: Mask(documents=torch.zeros(1, 5)), ValueError, "documents", "float32", "integers"),
    "documents of one axis": (lambda: documents(5), ValueError, "documents", "(5,)", "(batch, keys)"),
    "float allow": (lambda: Mask(allow=torch.ones(5, 5)), TypeError, "allow", "float32", "torch.bool"),
    "a score of another kind": (lambda: Attention(8, 2, score=3), ValueError, "score=3", "scaled", "Additive"),
    "an unknown keep": (lambda: watched("mlp", keep="first"), ValueError, "'first'", "all", "last"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("what", WRONG)
def test_the_error_names_what_was_given_and_what_was_expected(what):
    call, kind, *words = WRONG[what]
    with pytest.raises(kind) as error:
        call()
    assert isinstance(error.value, UserError)
    for word in words:
        assert word in str(error.value)


def unchecked() -> dict[str, tuple[bool, str]]:
    """For each call that the checker refuses, whether it raises the right class of error, and what it raises."""
    calls = {what: (call, kind) for what, (call, kind, *_) in UNCHECKED.items()}
    calls |= {what: (lambda make=make: make("odd"), ValueError) for what, (make, _) in WORDS.items()}
    raised = {}
    for what, (call, kind) in calls.items():
        try:
            call()
            raised[what] = (False, "nothing was raised")
        except Exception as error:
            right = issubclass(type(error), kind) and issubclass(type(error), UserError)
            raised[what] = (right, f"{type(error).__name__}: {error}")
    return raised


@pytest.fixture(scope="module")
def raised() -> dict[str, tuple[bool, str]]:
    script = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    return json.loads(script.stdout)


@pytest.mark.parametrize("what", UNCHECKED)
def test_the_error_does_so_without_a_type_checker(what, raised):
    _, _, *words = UNCHECKED[what]
    right, message = raised[what]
    assert right, message
    for word in words:
        assert word in message


@pytest.mark.parametrize("what", WORDS)
def test_the_error_about_an_unknown_word_lists_the_known_ones(what, raised):
    right, message = raised[what]
    assert right, message
    assert "'odd'" in message
    for word in WORDS[what][1]:
        assert word in message


if __name__ == "__main__":
    print(json.dumps(unchecked()))
