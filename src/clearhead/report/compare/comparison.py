"""compare: measure two models by every section that fits, and write the report."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from ...atomic_files import atomic_write
from ...errors import InputError, UserError
from ...weights import Bundle, opened
from ..result_files import page, picture, table_html
from .inputs import Place, read_inputs, title_of
from .pair import ModelPair, Section
from .sections import SECTIONS


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Two models side by side.

    Examples:
        >>> result = compare("vit-cifar10", "resnet-cifar10", inputs=8, sections=["sizes"])
        >>> result.names, list(result.sections)
        (('vit-cifar10', 'resnet-cifar10'), ['sizes'])
        >>> result.save(tmp / "report.html").name
        'report.html'
    """

    names: tuple[str, str]  # of both models
    data: str  # what they were measured on, in words
    inputs: int  # the number of inputs
    sections: dict[str, Section]  # what was measured, by name
    left_out: dict[str, str]  # what was not, with the reason

    def __repr__(self) -> str:
        return f"Comparison({' and '.join(self.names)}, inputs={self.inputs}, sections={len(self.sections)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "names": list(self.names),
            "data": self.data,
            "inputs": self.inputs,
            "left_out": self.left_out,
            "sections": {
                name: section.numbers for name, section in self.sections.items() if section.numbers
            },
        }

    def __rich__(self) -> Group:
        first, second = self.names
        parts: list[Any] = [f"{first} and {second}, {self.inputs} inputs: {self.data}"]
        for name, section in self.sections.items():
            title = SECTIONS[name].title
            # The text explains how the numbers below are read.
            parts.append(f"\n{title}. {section.text}" if section.text else f"\n{title}")
            if section.table is not None:
                # The same layout as output of other commands: no lines, and space between columns.
                table = Table(
                    *section.table.columns, box=None, pad_edge=False, padding=(0, 3, 0, 0)
                )
                for row in section.table.cells():
                    table.add_row(*row)
                parts.append(table)
        # A reader should see that a section is missing, and why.
        if self.left_out:
            parts += ["\nLeft out", *self._reasons()]
        return Group(*parts)

    def _reasons(self) -> list[str]:
        """A line for each section that was left out: its title, and why."""
        return [
            f"{SECTIONS[name].title}: {why.rstrip('.')}." for name, why in self.left_out.items()
        ]

    def html(self) -> str:
        """The report as one page, with the pictures inside."""
        body = [f'<p class="quiet">{self.inputs} inputs: {html.escape(self.data)}</p>']
        for name, section in self.sections.items():
            body.append(f"<h2>{html.escape(SECTIONS[name].title)}</h2>")
            if section.text:
                body.append(f"<p>{html.escape(section.text)}</p>")
            # Tables before pictures: numbers first, and then what they look like.
            if section.table is not None:
                body.append(table_html(section.table))
            # Pictures side by side, as many as the window is wide.
            body.append('<div class="row">')
            body += [picture(figure, caption) for caption, figure in section.figures.items()]
            body.append("</div>")
        if self.left_out:
            # Reasons may quote names of models and files.
            reasons = [f"<li>{html.escape(reason)}</li>" for reason in self._reasons()]
            body.append(f"<h2>Left out</h2>\n<ul>{''.join(reasons)}</ul>")
        return page(f"{self.names[0]} and {self.names[1]}", "\n".join(body))

    def _repr_html_(self) -> str:
        return self.html()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report to an .html file, or its numbers to a .json file; a missing folder is created.

        Args:
            path: The file.
        """
        target = Path(path)
        check_report(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        # The page has the pictures; JSON has the numbers only.
        if target.suffix.lower() == ".html":
            text = self.html()
        else:
            text = json.dumps(self.to_dict(), allow_nan=False)
        atomic_write(target, text.encode())
        return target


def compare(
    a: Bundle | Place,
    b: Bundle | Place,
    *,
    data: Place | None = None,
    inputs: int = 256,
    sections: list[str] | None = None,
    root: Path | None = None,
    done: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compare two models: similarity of layers, attention distance, receptive fields, saliency, accuracy, speed, size.

    Both read images, or both read texts (language models and encoders), or both translate between the same languages.
    A section that fits neither model is left out, with the reason; one that fits one of them shows that one.

    Args:
        a: A model, or what `load` takes.
        b: A model to compare it with, which reads the same kind of input.
        data: A named set of images, a folder of images (accuracy needs a folder per class), a file with a text or two
            with a tab between them per line; None: the images and texts that ship.
        inputs: The number of inputs to measure on, chosen evenly from the data.
        sections: What to measure: names of sizes, accuracy, speed, cka, distance, fields, colours, saliency, lens;
            None: all that fit the models.
        root: Folder in which data files are looked for first.
        done: Called with the number of sections just finished, and of all.

    Returns:
        The numbers and figures; `save` writes them as one HTML file.

    Raises:
        InputError: If the models read different kinds of input, or translate between different languages.

    Examples:
        >>> result = compare("vit-cifar10", "resnet-cifar10", inputs=8, sections=["sizes", "lens"])
        >>> result.sections["sizes"].numbers["parameters"]
        {'vit-cifar10': 1787786, 'resnet-cifar10': 1783138}
    """
    first, second = opened(a), opened(b)
    names = (title_of(first), title_of(second))
    # Two runs of one recipe may have the same name, and every result is stored by name.
    if names[0] == names[1]:
        names = (f"{names[0]} (A)", f"{names[1]} (B)")
    chosen = list(SECTIONS) if sections is None else sections
    # A misspelt section is an error before any model is measured.
    if not set(chosen) <= set(SECTIONS):
        raise InputError(f"sections={sections}: expected some of {', '.join(SECTIONS)}")
    measured_on = read_inputs(first, second, data, inputs, root)
    pair = ModelPair(
        models={names[0]: first, names[1]: second},
        inputs=measured_on,
        images=first.reads == "images",
    )
    measured, left_out = dict[str, Section](), dict[str, str]()
    for name in chosen:
        try:
            # A section raises UnfitError for models that it does not fit.
            measured[name] = SECTIONS[name].run(pair)
        except UserError as problem:  # the message says what does not fit
            left_out[name] = str(problem)
        if done is not None:
            done(1, len(chosen))
    return Comparison(
        names=names,
        data=measured_on.name,
        inputs=len(measured_on.items),
        sections=measured,
        left_out=left_out,
    )


def check_report(path: Path) -> None:
    """Raise if a file has no ending of a report, or is a folder."""
    if path.suffix.lower() not in (".html", ".json") or path.is_dir():
        raise InputError(f"{path}: expected the name of a file that ends in .html or .json")
