"""patching: which layer and position carry the difference between two inputs, by activation patching.

Meng et al. 2022, section 2 (causal tracing); Wang et al. 2023 for heads. The model runs on the corrupted input, one
activation is replaced by that of the clean input, and the answer's log-probability shows how much of the clean answer
comes back. All cells of the map are independent: many run as rows of one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ... import draw
from ...errors import InputError
from ...inputs import ModelInput, read_input
from ...inputs.read import Given
from ...progress import Done
from ...weights import Bundle
from ..capture.edits import Edit
from ..structure import layer_stack, view_addresses
from ..targets import Answer, Wanted, answer_logits, answer_of, answer_position, rows_at_once
from ..watch import watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Patching(draw.Result):
    """The share of the clean answer that comes back when one activation of the clean input is put into the other run.

    Examples:
        >>> writer = clearhead.load("everyday")
        >>> result = patching(writer, "The man lost his", "The girl lost his", target=(" way", " hair"))
        >>> result.matrix.shape, result.columns
        (torch.Size([5, 4]), ['The', ' man', ' lost', ' his'])
        >>> bool((result.matrix[:, 0].abs() < 1e-4).all())  # the first token is the same in both
        True
    """

    in_json = "what answer clean corrupted layers columns others grid matrix"

    # 0: as the corrupted input, 1: as the clean one; layers x tokens or x heads
    matrix: Float[Tensor, "l n"]
    what: str  # what is exchanged: "residual", "attention", "mlp", "cross" or "heads"
    layers: list[str]  # the address of each row
    columns: list[str]  # the name of each token of the clean input, or of each head
    # what is measured: the name of an answer, or of two whose difference it is
    answers: tuple[str, ...]
    clean: float  # its log-probability, or the difference of two, for the clean input
    corrupted: float  # the same for the corrupted input
    # the name of each token of the corrupted input; None: as `columns`
    others: list[str] | None = None
    # rows and columns of patches of an image: the last columns, row by row
    grid: tuple[int, int] | None = None
    answer_ids: tuple[int, ...] = ()  # the tokens or classes of `answers`

    def __repr__(self) -> str:
        return (
            f"Patching(what={self.what!r}, layers={len(self.layers)}, columns={len(self.columns)})"
        )

    @property
    def answer(self) -> str:
        """The answer, or both, in words."""
        return " against ".join(name.strip() or name for name in self.answers)

    def figure(self, *, most: float | None = 1.0) -> Figure:
        """Draw the matrix as one heat map, layers from top to bottom; a token that was exchanged has both names.

        Args:
            most: The effect at the end of the colours; None: the largest.
        """
        names = []
        # A column whose token differs between both inputs shows both.
        for clean, corrupted in zip(self.columns, self.others or self.columns, strict=True):
            both = f"{clean.strip()} / {corrupted.strip()}"
            names.append(clean if clean == corrupted else both)
        xlabel = "head" if self.what == "heads" else "token"
        if self.what != "heads" and names != self.columns:
            xlabel = "token (first / second input)"
        return draw.matrix(
            self.matrix.numpy(),
            rows=[str(i) for i in range(len(self.layers))],
            columns=names,
            ylabel="layer",
            title=f"Activation patching: {self.what} of the first input in the run of the second\n"
            f"answer: {self.answer.strip()}",
            most=most,
            square=False,
            scale="0: as the second input, 1: as the first",
            xlabel=xlabel,
        )

    def table(self) -> draw.Table:
        """The three largest effects of each layer."""
        rows = []
        for layer, effects in enumerate(self.matrix):
            # Largest by size: a negative share moves the answer away from the clean one.
            best = effects.abs().argsort(descending=True, stable=True)[:3].tolist()
            named = [f"{self.columns[j]!r} {float(effects[j]):+.2f}" for j in best]
            rows.append((layer, ", ".join(named)))
        return draw.Table(
            columns=("layer", "largest effects"),
            rows=rows,
            title=f"{self.answer.strip()}: {self.what} of the first input",
        )


@torch.no_grad()
def patching(
    model: Bundle | nn.Module,
    clean: Given,
    corrupted: Given,
    *,
    target: Wanted | None = None,
    what: str = "residual",
    at: int | None = None,
    stack: str | None = None,
    written: str | None = None,
    tokenizer: Any = None,
    done: Done | None = None,
) -> Patching:
    """Return the effect of every layer and position, or of every head, on the difference between two inputs.

    The effect is (m - m_corrupted) / (m_clean - m_corrupted), where m is the log-probability of the target, or the
    difference of two, if one activation of the corrupted run is replaced by that of the clean run.

    Args:
        model: A Bundle of a language model, a classifier, a translator or an encoder with a masked token; or a torch
            module whose output is logits, such as a model of transformers or timm.
        clean: The first input, whose activations are put in: a text or an image; for a torch module its first argument
            with one row, or a dict of its arguments.
        corrupted: The second input, whose run is changed, with as many tokens.
        target: A class or token, or a pair, whose difference is measured; None: the likeliest answer to the clean
            input, against that to the corrupted one if the two differ.
        what: What is exchanged: the "residual" stream after a layer, the output of its "attention", "cross"-attention
            or "mlp", or the output of each of its "heads" at all positions.
        at: The position whose next token is the answer; None: the last, or the masked token.
        stack: "encoder" or "decoder", for a model that has both; None: the one with more layers.
        written: What a translator has written so far.
        tokenizer: The tokenizer of a model of transformers, which reads a text and names tokens; a Bundle has its own.
        done: Called with the number of cells just finished, and of all.

    Raises:
        InputError: If the inputs have different lengths, give the same answer, or the model has no such activation.

    Examples:
        >>> model = clearhead.build("gpt", vocab=9, context=8, width=8, depth=2, heads=2).eval()
        >>> result = patching(model, torch.tensor([[1, 2, 3]]), torch.tensor([[1, 5, 3]]), target=4, what="heads")
        >>> result.matrix.shape
        torch.Size([2, 2])
    """
    clean_input = read_input(model, clean, target=written, tokenizer=tokenizer)
    corrupted_input = read_input(model, corrupted, target=written, tokenizer=tokenizer)
    _check_lengths(clean_input, corrupted_input)
    place = answer_position(clean_input, at)
    # Positions are exchanged one for one, so the answer must be read from the same one.
    if at is None and place != answer_position(corrupted_input, at):
        raise InputError(
            "the masked token is at another position in the corrupted text: expected the same one"
        )
    layers = view_addresses(layer_stack(clean_input, stack), what)
    with watch(clean_input.model, *layers, keep=_first) as tape:
        clean_logits = answer_logits(clean_input, at=place)
    corrupted_logits = answer_logits(corrupted_input, at=place)
    # Without a target: the likeliest answer to each input, measured as a difference if they differ.
    if target is None:
        target = _answers(clean_logits, corrupted_logits)
    answer = answer_of(clean_input, target, place, clean_logits[0])
    # m of both runs, between which that of a patched run is expected
    m_clean = float(answer.measure(clean_logits))
    m_corrupted = float(answer.measure(corrupted_logits))
    # The effect divides by this difference, so that it must not vanish.
    if m_clean == m_corrupted:
        raise InputError(
            f"the clean and the corrupted input give {answer.name!r} the same {m_clean:.4g}: expected another "
            "corrupted input, or another target"
        )
    records = [_record(tape.calls(address), address, clean_input.tokens) for address in layers]
    m = sweep(corrupted_input, answer, layers, records, clean_logits.shape[-1], done)
    # n of the records: heads, or tokens of the stack whose layers are patched.
    size = records[0].shape[0]
    decoder = layers[0].split(".")[0] == "decoder"
    names, others, grid = [str(i) for i in range(size)], None, None
    if what != "heads":
        names = clean_input.names(size, decoder=decoder)
        others = corrupted_input.names(size, decoder=decoder)
        # Positions of a decoder are no patches of the image.
        if size == clean_input.tokens:
            grid = clean_input.grid
    return Patching(
        matrix=((m - m_corrupted) / (m_clean - m_corrupted)).cpu(),
        what=what,
        layers=layers,
        columns=names,
        answers=answer.names,
        clean=m_clean,
        corrupted=m_corrupted,
        others=others,
        answer_ids=answer.ids,
        grid=grid,
    )


def sweep(
    given: ModelInput,
    answer: Answer,
    layers: list[str],
    records: list[Tensor],
    vocab: int,
    done: Done | None,
) -> Float[Tensor, "l n"]:
    """Measure the answer for every cell (l, n): place n of address l is replaced by the record's place n.

    Args:
        given: The input of the run that is changed.
        answer: What is measured.
        layers: The addresses.
        records: What is put in, (n, ...) per address.
        vocab: The number of logits.
        done: Called with the number of cells just finished, and of all.
    """
    places = records[0].shape[0]
    # Cells in the order of the matrix, so that the results can be unflattened at the end.
    cells = [(layer, place) for layer in range(len(layers)) for place in range(places)]
    step = rows_at_once(given, vocab)
    measures = []
    for first in range(0, len(cells), step):
        # each cell is a row of one batch, and each layer one edit of its rows
        some = cells[first : first + step]
        rows_of: dict[int, list[tuple[int, int]]] = {}
        for row, (layer, place) in enumerate(some):
            rows_of.setdefault(layer, []).append((row, place))
        changes = {layers[layer]: _put(records[layer], cells) for layer, cells in rows_of.items()}
        measures.append(answer.measure(answer_logits(given, len(some), changes, answer.at)))
        if done is not None:
            done(len(some), len(cells))
    # (l n,) -> (l, n)
    return torch.cat(measures).unflatten(0, (len(layers), places))


def _put(record: Tensor, cells: list[tuple[int, int]]) -> Edit:
    """An edit that replaces place p in row r by place p of a record, for each (r, p)."""
    rows = [row for row, _ in cells]
    places = [place for _, place in cells]

    def change(x: Any) -> Any:
        if isinstance(x, tuple):  # a foreign layer may return several values
            return (change(x[0]), *x[1:])
        joined = x.ndim == record.ndim  # as the MLP of OPT, (rows x tokens, width)
        # (rows x tokens, d) -> (rows, tokens, d) and back
        y = x.unflatten(0, (-1, len(record))) if joined else x
        # A copy, because the model may read the unedited activation elsewhere.
        y = y.clone()
        y[rows, places] = record[places].to(y)
        return y.flatten(0, 1) if joined else y

    return change


def _first(record: Any) -> Any:
    """The first value of a layer that returns several."""
    if isinstance(record, tuple):
        return record[0]
    return record


def _record(calls: list[Any], address: str, tokens: int) -> Tensor:
    """The one record of an address without its batch axis: (t, d), or (h, t, e) of heads.

    A layer may join the axes of rows and tokens, as the MLP of OPT does.
    """
    # Recurrent or shared layers run several times, and which run to patch would be ambiguous.
    if len(calls) != 1:
        raise InputError(
            f"{address} runs {len(calls)} times in one pass: expected a layer that runs once"
        )
    x = calls[0]
    # Heads are (1, h, t, e), everything else (1, t, d).
    axes = 4 if address.endswith(".heads") else 3
    if axes == 3 and isinstance(x, Tensor) and x.ndim == 2 and len(x) == tokens:
        return x
    if not isinstance(x, Tensor) or x.ndim != axes or x.shape[0] != 1:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(
            f"the output of {address} has the shape {shape}: expected a vector per token to exchange"
        )
    return x[0]


def _answers(clean: Tensor, corrupted: Tensor) -> Wanted:
    """The likeliest answer to the clean input, and that to the corrupted one if it is another."""
    likeliest, other = int(clean[0].argmax()), int(corrupted[0].argmax())
    if likeliest == other:
        return likeliest
    return (likeliest, other)


def _check_lengths(clean: ModelInput, corrupted: ModelInput) -> None:
    shapes = [[tuple(x.shape) for x in given.tensors] for given in (clean, corrupted)]
    if shapes[0] == shapes[1]:
        return
    # Texts can be described by their pieces, which say where they differ.
    if clean.pieces is not None and corrupted.pieces is not None:
        raise InputError(
            f"the clean text has {len(clean.pieces)} tokens and the corrupted one {len(corrupted.pieces)}: expected as "
            f"many, because positions are exchanged ({clean.pieces} and {corrupted.pieces})"
        )
    raise InputError(
        f"inputs of shapes {shapes[0]} and {shapes[1]}: expected the same, because positions are exchanged"
    )
