"""The command line: one subcommand = one public function. What takes time to import is imported by its command.

stdout is the result, stderr the talk; 0 done, 1 failed, 2 misuse.
"""

from __future__ import annotations

import dis
import functools
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from . import __version__

P = ParamSpec("P")
T = TypeVar("T")

app = typer.Typer(
    name="clearhead",
    help="Build, train, run and look inside attention models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RecipeFile = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe, .toml or .json.")]
Words = Annotated[list[str] | None, typer.Argument(metavar="OVERRIDE", help="Values to change, like optim.lr=1e-3.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder in which files of data are looked for first.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A shipped model's name, a folder, a run's, or a GGUF file.")
]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="A text, a file of one a line, or - for stdin.")]
Type = Annotated[str | None, typer.Option("--dtype", help="float32, bfloat16, float16, int8; as stored if not given.")]


def main() -> None:
    """The console script. A result that goes into a file is UTF-8, as files that are read are."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")
    app(prog_name="clearhead")


def _command(function: Callable[P, T]) -> Callable[P, T]:
    """A mistake of the user's is told in a sentence, without a traceback."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (ValueError, OSError, RuntimeError) as problem:
            if not _is_users(problem):
                raise
            worker = f"worker {_rank()}: " if _rank() else ""
            print(worker + _sentence(problem), file=sys.stderr)
            raise typer.Exit(1) from problem

    return wrapped


def _is_users(problem: Exception) -> bool:
    """Whether an error tells the person at the keyboard what to mend: a file's, or one that the house itself raised.

    What a library raised in a call of ours is a bug of ours, and shows its trace.
    """
    if isinstance(problem, OSError) and problem.filename is not None:
        return True
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not str(trace.tb_frame.f_globals.get("__name__", "")).startswith("clearhead"):
        return False
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def _sentence(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"{problem.filename}: {problem.strerror}"
    return " ".join(str(problem).split()) or type(problem).__name__


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _show(result: Any, as_json: bool) -> None:
    """Print a result: plain values as JSON, or whatever rich can draw. Of several workers, the first does."""
    if _rank():
        return
    if as_json:
        print(json.dumps(result if isinstance(result, dict | list) else result.to_dict(), allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 10_000  # nothing is wrapped or cut for a file
    console.print(result, soft_wrap=isinstance(result, str))


def _rows(*rows: tuple[str, str]) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


def _version(asked: bool) -> bool:
    if asked:
        print(__version__)
        raise typer.Exit
    return asked


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
@_command
def train(
    recipe: RecipeFile,
    overrides: Words = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder; runs/NAME if not given.")] = None,
    data: DataFolder = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a recipe in a folder, or go on with what is there.

    clearhead train configs/reverse.toml optim.lr=1e-3 --out runs/a

    torchrun --nproc-per-node 2 -m clearhead train configs/reverse.toml --out runs/b
    """
    from .config import load
    from .train import train

    run = train(recipe, *overrides or (), out=out, data=data, device=device, quiet=quiet)
    last: dict[str, Any] = {}
    for record in run.metrics:
        last |= {name: value for name, value in record.items() if name != "inside"}
    facts = {"folder": str(run.folder), "finished": run.finished, "steps": load(run.folder / "recipe.toml")["steps"]}
    if as_json:
        _show(facts | last, True)
    else:
        told = {"folder": str(run.folder), "finished": "yes" if run.finished else "no: the same command goes on"}
        told |= {"step": f"{last.pop('step', 0)} of {facts['steps']}"}
        told |= {name.replace("_", " "): f"{value:.4g}" for name, value in last.items() if value is not None}
        _show(_rows(*told.items()), False)


@app.command()
@_command
def verify_resume(
    recipe: RecipeFile,
    overrides: Words = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="A new folder, for all runs.")],
    kills: Annotated[int, typer.Option("--kills", min=1, help="How often the training is killed.")] = 3,
    world: Annotated[
        int | None, typer.Option("--world", min=2, help="Begin with so many workers too, and compare to rounding.")
    ] = None,
    data: DataFolder = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Of the moments of the kills.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show that a training that is killed and resumed equals one in peace, to the bit; exit 1 if not.

    clearhead verify-resume configs/reverse.toml steps=200 --out runs/verify --kills 3
    """
    from .train import verify_resume

    verdict = verify_resume(
        recipe, *overrides or (), out=out, kills=kills, world=world, data=data, device=device, seed=seed, quiet=quiet
    )
    _show(verdict, as_json)
    if not verdict.passed:
        raise typer.Exit(1)


@app.command()
@_command
def sweep(
    recipe: RecipeFile,
    overrides: Words = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="A folder for all trainings.")],
    data: DataFolder = None,
    device: Device = "auto",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Trainings at a time.")] = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train all combinations of alternatives, given with commas between them; a list in brackets is one value.

    clearhead sweep configs/reverse.toml model.positions=none,learned,rotary seed=1,2,3 --out runs/positions
    """
    from .train import sweep

    found = sweep(recipe, *overrides or (), out=out, data=data, device=device, jobs=jobs, quiet=quiet)
    _show(found, as_json)
    if any(trial.error for trial in found.trials):
        raise typer.Exit(1)


@app.command()
@_command
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders; several share their axes.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="A .png, .pdf or .svg; others lie beside it. RUN/plot.png if not given."),
    ] = None,
) -> None:
    """Draw a training's curves, and what every head did if it was looked inside; print the files' names.

    clearhead plot runs/a        clearhead plot runs/a runs/b -o both.png
    """
    from .report import plot

    for path in plot(*runs, out=out or runs[0] / "plot.png"):
        print(path)


@app.command()
@_command
def translate(
    model: Model,
    text: Text,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION", help="Like beams=5, best=3, penalty=0.6, sample=true.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Translate a sentence, or a file line by line; with --json also scores, pieces and what each looked at.

    clearhead translate en-de "A dog runs." beams=5        clearhead translate runs/en-de news.txt > news.de
    """
    from .config import read
    from .data.files import as_line
    from .tasks.translate import Options, sentences, translate
    from .weights import load

    lines = sentences(text)
    chosen = read(Options, _options_of(options))
    ready = load(model, device=device)
    with _notices(), _progress() as done:
        found: Any = translate(ready, lines, done=lambda n: done(n, len(lines)), **chosen.to_dict())
    if as_json:
        _show([one.to_dict() for one in found], True)
    else:
        for one in found:
            print(as_line(one.text))


@app.command()
@_command
def evaluate(
    model: Model,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA",
            help="A translator: multi30k, tatoeba, a file of source TAB target, or two. A language model: a text. "
            "A classifier: sst2, or a file of text TAB label. Then options.",
        ),
    ],
    root: DataFolder = None,
    out: Annotated[Path | None, typer.Option("--out", help="A file for the model's answers, one a line.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure a model on data that it has not seen: BLEU and chrF, perplexity, or accuracy.

    clearhead evaluate runs/en-de multi30k split=test_2017_flickr beams=5 protocol=moses

    clearhead evaluate runs/shakespeare shakespeare last=0.1 stride=64

    clearhead evaluate runs/en-de news.en news.de source=en target=de --out news.hyp
    """
    from .config import atomic_write
    from .tasks.evaluate import evaluate
    from .weights import load

    files = [word for i, word in enumerate(data) if not i or "=" not in word]
    options = _options_of([word for word in data[1:] if "=" in word])
    ready = load(model, device=device)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    with _notices(), _progress() as done:
        found = evaluate(ready, files[0] if len(files) == 1 else files, root=root, done=done, **options)
    if out is not None:
        if not hasattr(found, "hypotheses"):
            raise ValueError(f"--out {out}: a language model gives no answers to write down, only how likely they are")
        atomic_write(out, "".join(f"{line}\n" for line in found.hypotheses).encode())
    _show(found, as_json)


def _options_of(words: list[str] | None) -> Any:
    from .config import Table, override

    return override(Table(), *words or ())


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, told how many more of how many things are done; for one thing, and for a file, nothing."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda n, total: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", visible=False)

        def done(n: int, total: int) -> None:
            bar.update(task, advance=n, total=total, visible=total > 1)

        yield done


@contextmanager
def _notices() -> Iterator[None]:
    """What is done otherwise than asked is told in a sentence, without its place in the code."""
    from .look import Notice

    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **how: Any) -> None:
            if issubclass(category, Notice):
                print(message, file=sys.stderr)
            else:
                usual(message, category, *where, **how)

        warnings.simplefilter("always", Notice)
        warnings.showwarning = show
        yield


@app.command()
@_command
def generate(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text to go on with, or - for stdin.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION", help="Like max_new=200, top_p=0.9, temperature=0.8, seed=7.")
    ] = None,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
) -> None:
    """Go on with a text, word by word as it is written; with --json also every token and how likely it was.

    clearhead generate runs/shakespeare "ROMEO:" max_new=300 temperature=0.8 seed=7
    """
    from .data.files import as_text
    from .tasks import generate, stream
    from .weights import load

    prompt = as_text(sys.stdin.buffer.read(), "stdin") if text == "-" else text
    chosen, ready = _options_of(options), load(model, device=device, dtype=dtype)
    with _notices():
        if as_json or chosen.get("samples", 1) != 1 or chosen.get("beams", 1) != 1:
            found: Any = generate(ready, prompt, **chosen)
            if as_json:
                _show(found, True)
            else:  # as it is: what draws tables would leave out control characters
                print("\n\n".join(one.text for one in (found, *found.others)))
            return
        for piece in stream(ready, prompt, **chosen):
            print(piece, end="", flush=True)
        print()


@app.command()
@_command
def chat(
    model: Model,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION", help="Like max_new=400, temperature=0.7, top_p=0.9.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="What the model is told before the talk.")] = None,
    device: Device = "auto",
    dtype: Type = None,
) -> None:
    """Talk with a model that has a chat template. An empty line, or the end of the input, ends it.

    clearhead chat smollm2.gguf --system "You answer in one sentence."
    """
    from .tasks import chat
    from .weights import load

    chosen, ready = _options_of(options), load(model, device=device, dtype=dtype)
    talk = [] if system is None else [{"role": "system", "content": system}]
    with _notices():
        while said := _asked():
            talk.append({"role": "user", "content": said})
            answer = ""
            for piece in chat(ready, talk, **chosen):
                print(piece, end="", flush=True)
                answer += piece
            print()
            talk.append({"role": "assistant", "content": answer})


def _asked() -> str:
    """The next line that somebody types, or pipes in."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


@app.command()
@_command
def fill(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text with one or more [MASK] in it.")],
    top: Annotated[int, typer.Option(help="Words to show for each gap.")] = 5,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Fill the gaps of a text: the likeliest words of each, and how likely they are.

    clearhead fill runs/bert "the film is [MASK] ."
    """
    from .tasks import fill
    from .weights import load

    found = fill(load(model, device=device), text, top=top)
    _show(found if as_json else _rows(*_shares(found)), as_json)


@app.command()
@_command
def classify(model: Model, text: Text, device: Device = "auto", as_json: Json = False) -> None:
    """Sort a text, or a file line by line: its classes, and how likely each is.

    clearhead classify runs/sst2 "a stirring , funny film"
    """
    from .tasks import classify
    from .tasks.translate import sentences
    from .weights import load

    found: Any = classify(load(model, device=device), sentences(text))
    _show(found if as_json else _rows(*_shares(found)), as_json)


def _shares(found: Any) -> list[tuple[str, str]]:
    """For each text or gap, the first in a line of its own."""
    return [("", "  ".join(f"{name} {share:.1%}" for name, share in one)) for one in found]


@app.command()
@_command
def embed(model: Model, text: Text, device: Device = "auto") -> None:
    """A vector for a text, or for each line of a file, as JSON: products of two are cosines.

    clearhead embed minilm/ questions.txt > vectors.json
    """
    from .tasks import embed
    from .tasks.translate import sentences
    from .weights import load

    _show(embed(load(model, device=device), sentences(text)).tolist(), True)


@app.command()
@_command
def parity(model: Model, as_json: Json = False) -> None:
    """What became of every tensor of a checkpoint, and how far its answers are from the reference's.

    clearhead parity path/to/gpt2 --json
    """
    from .weights import certificate

    found = certificate(model)
    _show(found if as_json else str(found), as_json)


@app.command()
@_command
def models(as_json: Json = False) -> None:
    """The models that ship with the package, and the families that a recipe can name.

    clearhead models
    """
    from .config import dump
    from .models import families
    from .weights import shipped

    zoo, found = shipped(), families()
    if as_json:
        _show({"shipped": {name: dump(card) for name, card in zoo.items()}, "families": found}, as_json)
        return
    _show("Shipped: for load and the command line", as_json)
    _show(_rows(*((name, card.does) for name, card in zoo.items())), as_json)
    _show("Families: for build and for recipes", as_json)
    _show(_rows(*found.items()), as_json)


@app.command()
@_command
def data(as_json: Json = False) -> None:
    """The names of data that a recipe can use.

    clearhead data
    """
    from .data import names

    found = names()
    _show(found if as_json else _rows(*found.items()), as_json)


@app.command()
@_command
def explore(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Folders of models, beside those that ship.")
    ] = None,
    runs: Annotated[Path | None, typer.Option("--runs", help="A folder of trainings to show.")] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The first port to try; 0 for any.")] = 8000,
    host: Annotated[str, typer.Option("--host", help="Let other machines in, with a token.")] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    device: Device = "auto",
) -> None:
    """Open the explorer, a page that shows what attention does; print its address, and serve it until Ctrl-C.

    clearhead explore        clearhead explore runs/en-de --runs runs --port 8000 --no-browser
    """
    from .explore import serve

    serve(
        models or (), runs=runs, host=host, port=port, device=device, browser=not no_browser,
        say=lambda address: print(address, flush=True),
    )  # fmt: skip


@app.command()
@_command
def doctor(device: Device = "auto", as_json: Json = False) -> None:
    """Say what this machine has, which kernels answer, and whether the models that ship work here; exit 1 if not.

    clearhead doctor
    """
    from .report.doctor import doctor

    found = doctor(device=device)
    if as_json:
        _show(found, True)
    else:
        _show(_rows(*found.facts.items(), *found.zoo.items()), False)
        for problem in found.problems:
            print(problem, file=sys.stderr)
    if found.problems:
        raise typer.Exit(1)
