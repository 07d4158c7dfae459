"""Result: how a measurement presents itself, as a figure, as a table and as plain values; Table: its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .style import encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table as RichTable

MOST_ROWS = 24  # tokens or channels that a table lists


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows that a terminal, a notebook or a web page can show.

    Examples:
        >>> table = Table(columns=("head", "weight"), rows=[(0, 0.123456), (1, 0.5)])
        >>> table.cells()
        [['0', '0.1235'], ['1', '0.5']]
    """

    columns: Sequence[str]  # their names
    rows: Sequence[Sequence[Any]]  # a cell per column: a text or a number
    title: str = ""  # a line above the columns
    note: str = ""  # a line below the rows

    @staticmethod
    def of_heads(values: Any, form: str, *, title: str) -> Table:
        """A table of a number per head: a row per layer, and a column per head.

        Args:
            values: Numbers (layers, heads), an array or a tensor.
            form: How a number is written, such as "+.3f".
            title: The title.

        Examples:
            >>> Table.of_heads(np.array([[0.25, -0.5]]), "+.2f", title="effect").cells()
            [['0', '+0.25', '-0.50']]
        """
        heads = [f"head {i}" for i in range(values.shape[1])]
        rows = [[i, *(format(x, form) for x in row)] for i, row in enumerate(values.tolist())]
        return Table(columns=["layer", *heads], rows=rows, title=title)

    def cells(self) -> list[list[str]]:
        """The rows as text, numbers with four digits."""
        return [[_cell(value) for value in row] for row in self.rows]

    def __rich__(self) -> RichTable:
        from rich.table import Table as RichTable

        table = RichTable(
            *self.columns,
            title=self.title or None,
            caption=self.note or None,
            title_justify="left",
        )
        for row in self.cells():
            table.add_row(*row)
        return table


class PlainValues:
    """The base class of results that become JSON: their fields, or the attributes that `in_json` names."""

    # names of the attributes that `to_dict` returns, as in "layer heads maps"; empty: all fields of the dataclass
    in_json: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        names = self.in_json.split()
        if not names:
            # a subclass that is not a dataclass must name its attributes in `in_json`
            assert dataclasses.is_dataclass(self)
            names = [field.name for field in dataclasses.fields(self)]
        return {name: plain(getattr(self, name)) for name in names}


class Result(PlainValues):
    """The base class of what looking, comparing and measuring returns: `figure()`, `table()` and `to_dict()`.

    Notebooks show the figure of a result, terminals its table. A subclass is a dataclass that draws itself and fills
    its table; its plain values follow from its fields, or from the attributes that `in_json` names.

    Examples:
        >>> @dataclass
        ... class Weights(Result):
        ...     values: Any
        ...     def figure(self):
        ...         return heatmap(self.values)
        ...     def table(self):
        ...         return Table(columns=("a", "b"), rows=self.values)
        >>> weights = Weights(np.array([[1.0, 0.0], [0.3, 0.7]]))
        >>> weights.to_dict(), weights._repr_png_()[1:4]
        ({'values': [[1.0, 0.0], [0.3, 0.7]]}, b'PNG')
    """

    def figure(self) -> Figure:
        """Draw the result."""
        raise NotImplementedError

    def table(self) -> Table:
        """Its main numbers as columns and rows."""
        raise NotImplementedError

    def __rich__(self) -> RichTable:
        return self.table().__rich__()

    def _repr_png_(self) -> bytes:
        """The figure as a PNG file, for notebooks."""
        return encode(self.figure())


def plain(value: Any) -> Any:
    """A value of dataclasses, arrays and tensors as dictionaries, lists, texts and numbers."""
    if hasattr(value, "tolist"):  # an array or a tensor
        # nested lists of Python numbers, which json can write
        return value.tolist()
    if dataclasses.is_dataclass(value):
        # not dataclasses.asdict, which would copy tensors instead of converting them
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def largest_cell(weights: Any) -> str:
    """The row and the column of the largest weight of a map, in words.

    Args:
        weights: A map (rows, columns), an array or a tensor.

    Examples:
        >>> largest_cell(np.array([[0.1, 0.2], [0.6, 0.1]]))
        'row 1, column 0'
    """
    row, column = divmod(int(weights.argmax()), weights.shape[1])
    return f"row {row}, column {column}"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
