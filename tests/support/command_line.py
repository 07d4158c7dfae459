"""Commands run in this process."""

from click.testing import Result
from typer.testing import CliRunner

from clearhead.cli import app


def call(*words: object, stdin: str | bytes | None = None) -> Result:
    """The result of a command: its exit code and what it has printed."""
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def output(*words: object, stdin: str | bytes | None = None) -> str:
    """The standard output of a command that succeeds."""
    result = call(*words, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout
