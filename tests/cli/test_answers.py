"""Commands on many inputs print each answer as it comes: in order, with bounded memory; a stop loses nothing."""

import io
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clearhead import Bundle, build, classify, load, save, translate
from clearhead.cli import inference
from clearhead.cli.answers import FIRST, MOST, print_answers, write_lines
from clearhead.cli.text_input import Item
from clearhead.data.files import as_line
from clearhead.errors import TextError
from clearhead.tokens import Pair, Subwords
from support.command_line import call

TEXTS = ["the cat sat on the mat", "a dog ran to the cat", "two cats and a dog"] * 4
CONTEXT = 16


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Tiny models with random weights: a classifier, a model of masked words and a translator."""
    torch.manual_seed(0)
    home, tokens = tmp_path_factory.mktemp("models"), Subwords.of(TEXTS, size=300)
    sizes = {"context": CONTEXT, "width": 16, "depth": 1, "heads": 2}
    sorter = build("bert", vocab=len(tokens) + 1, answer="class", classes=2, **sizes)
    save(Bundle(sorter, tokens, sorter.config, labels=("bad", "good")), home / "sorter")
    filler = build("bert", vocab=len(tokens) + 1, **sizes)
    save(Bundle(filler, tokens, filler.config), home / "filler")
    translator = build("transformer", vocab=len(tokens), target_vocab=len(tokens), **sizes)
    save(Bundle(translator, Pair(tokens, tokens), translator.config), home / "translator")
    return home


@pytest.fixture
def many(tmp_path):
    """A file of many lines of different lengths, which takes minutes."""
    path = tmp_path / "many.txt"
    path.write_text("".join(f"{'the cat ' * (i % 5)}{i}\n" for i in range(300_000)))
    return path


def start(*words, **options):
    line = [sys.executable, "-m", "clearhead", *map(str, words)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(line, **pipes)


# Stopping, and readers that close the pipe


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_loses_nothing_that_was_finished(models, many):
    with start("classify", models / "sorter", many, "--json") as child:
        lines = [child.stdout.readline() for _ in range(50)]
        child.send_signal(signal.SIGINT)
        # not `communicate`, which would leave out what readline has read ahead
        rest, err = child.stdout.read(), child.stderr.read()
    assert (child.returncode, err) == (130, b"")
    assert rest == b"" or rest.endswith(b"\n")
    found = [json.loads(line) for line in [*lines, *rest.splitlines()]]
    assert 50 <= len(found) < 300_000
    with many.open() as file:
        assert [one["input"] for one in found] == [line.rstrip("\n") for line in itertools.islice(file, len(found))]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "PYTHONUNBUFFERED"])
def test_an_interrupt_waits_for_the_lines_that_are_being_written(monkeypatch, buffered):
    """The pipe is full and its reader slow, as on a busy machine: the lines are still written whole."""
    reader, writer = os.pipe()
    lines, got = [f"{i} {'x' * 50}" for i in range(20_000)], []
    blocked = select.poll()
    blocked.register(writer, select.POLLOUT)

    def interrupt_and_read():
        while blocked.poll(0):  # there is room in the pipe
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        with open(reader) as file:
            got.extend(file.read().splitlines())

    thread = threading.Thread(target=interrupt_and_read)
    thread.start()
    with open(writer, "wb", buffering=-1 if buffered else 0) as pipe, io.TextIOWrapper(pipe, "utf-8") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with pytest.raises(KeyboardInterrupt):
            write_lines(lines)
    thread.join()
    assert got == lines
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(sys.platform == "win32", reason="the exit code of a closed pipe")
def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(models, many):
    with start("translate", models / "translator", many, "beams=1", "limit=2") as child:
        assert child.stdout.readline().endswith(b"\n")
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(timeout=60) == 141


def test_each_answer_comes_before_the_next_text_is_sent(models):
    with start("score", "everyday", "-", "--json") as child:
        for text in ("A man walks.", "Two dogs run in the snow."):
            child.stdin.write(f"{text}\n".encode())
            child.stdin.flush()
            assert json.loads(child.stdout.readline())["input"] == text
        child.stdin.close()
        assert child.stdout.read() == b""
        assert child.wait(timeout=60) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.parametrize("shown", [False, True], ids=["stdout is a file", "stdout is a terminal"])
def test_there_is_a_progress_bar_only_where_the_results_are_not_seen(models, tmp_path, shown):
    path, (reader, terminal) = tmp_path / "texts.txt", os.openpty()
    path.write_text("the cat\n" * 20)
    out = terminal if shown else subprocess.PIPE
    with start("classify", models / "sorter", path, stdout=out, stderr=terminal) as child:
        out = b"" if shown else child.stdout.read()
        assert child.wait(timeout=60) == 0
    seen = os.read(reader, 1 << 16)
    os.close(terminal)
    os.close(reader)
    assert (b"\x1b[" in seen) is not shown  # the control characters of a bar
    assert (seen if shown else out).count(b"the cat\t") == 20
    assert (b"the cat\t" in seen) is shown


# Order, batches and memory


def test_answers_are_in_order_and_those_of_each_text_alone(models, tmp_path):
    texts = [" ".join(TEXTS[i % 3].split()[: i % 6 + 1]) + f" {i}" for i in range(2 * MOST + 50)]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts) + "\n")
    found = [json.loads(line) for line in call("classify", models / "sorter", path, "--json").stdout.splitlines()]
    assert [one["input"] for one in found] == texts
    bundle = load(models / "sorter", device="cpu")
    for i in (0, 3, 4, 11, 12, 300, len(texts) - 1):  # within and at the ends of batches
        assert dict(found[i]["classes"]) == pytest.approx(dict(classify(bundle, texts[i])), abs=1e-6)


def test_samples_depend_on_the_seed_and_the_number_of_the_line_but_not_on_the_batch(models, tmp_path):
    texts = TEXTS * 2
    path = tmp_path / "texts.txt"
    path.write_bytes(b"\n".join([text.encode() for text in texts[:7]] + [b"\xff"] + [t.encode() for t in texts[8:]]))
    found = call("translate", models / "translator", path, "sample=true", "seed=5", "limit=6").stdout.split("\n")
    options = {"sample": True, "seed": 5, "limit": 6}
    expected = [as_line(one.text) for one in translate(load(models / "translator", device="cpu"), texts, **options)]
    assert found[:-1] == [*expected[:7], "", *expected[8:]]


class Lines(io.BufferedIOBase):
    """A stdin of many lines of 400 bytes that are made when they are read."""

    def __init__(self, lines):
        self.left = lines

    def read1(self, size):
        n = min(self.left, size // 400)
        self.left -= n
        return (b"x" * 399 + b"\n") * n


def resident():
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process")
def test_memory_is_bounded_however_long_the_input_is(models, monkeypatch):
    """40 MB in and more out: a list of the lines, of their answers or of the output would exceed the limit."""
    sizes, memory = [], []

    def answer(bundle, texts, *, top=None):
        sizes.append(len(texts))
        memory.append(resident())
        return [[("good", 1.0)] for _ in texts]

    monkeypatch.setattr(sys.modules["clearhead.tasks.classify"], "classify", answer)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Lines(1_000)))
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        inference.classify(str(models / "sorter"), ["-"], device="cpu")  # imports what it needs
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Lines(100_000)))
        sizes.clear()
        before = resident()
        inference.classify(str(models / "sorter"), ["-"], device="cpu", as_json=True)
    assert (sum(sizes), sizes[0]) == (100_000, FIRST)
    assert max(sizes) <= MOST
    assert max(*memory, resident()) - before < 20e6


# Lines that have no answer


def test_a_bad_line_is_named_and_the_others_are_answered(models, tmp_path):
    path = tmp_path / "texts.txt"
    lines = [b"the [MASK] sat", b"no mask", b"\xff [MASK]", b"", b"[MASK]" + b" the cat" * 30, b"a [MASK]"]
    path.write_bytes(b"\n".join(lines) + b"\n")
    found = call("fill", models / "filler", path, "--top", 1)
    assert found.exit_code == 1
    given = [line.split("\t")[0] for line in found.stdout.splitlines()]
    assert given == ["the [MASK] sat", "no mask", "\ufffd [MASK]", "", "[MASK]" + " the cat" * 30, "a [MASK]"]
    answers = [line.split("\t")[1] for line in found.stdout.splitlines()]
    assert [bool(one) for one in answers] == [True, False, False, False, False, True]
    *problems, last = found.stderr.splitlines()
    assert [line.removeprefix(f"{path}:").split(":")[0] for line in problems] == ["2", "3", "4", "5"]
    for problem, word in zip(problems, ["has no gap", "is not UTF-8 text", "has no gap", "tokens"], strict=True):
        assert word in problem
    assert last == "4 of 6 lines have no result"
    objects = [json.loads(line) for line in call("fill", models / "filler", path, "--json").stdout.splitlines()]
    assert ["error" in one for one in objects] == [False, True, True, True, True, False]
    assert [one["input"] for one in objects] == given


def test_a_line_that_is_cut_is_named_and_has_an_answer(models, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("the cat\n" * 9 + "the cat " * 30 + "\nthe cat\n")
    found = call("classify", models / "sorter", path)
    assert (found.exit_code, found.stdout.count("%")) == (0, 22)
    (notice,) = found.stderr.splitlines()
    assert notice.startswith(f"{path}:10: longer than the {CONTEXT} tokens that this model reads")


def test_an_error_in_an_option_is_not_repeated_for_every_line(models, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("the cat\n" * 9)
    found = call("classify", models / "sorter", path, "--top", 0)
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr == "top=0: expected a whole number, 1 or more\n"


def test_a_missing_file_is_an_error_before_any_answer(models, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat\n")
    found = call("classify", models / "sorter", tmp_path / "texts.txt", "missing.txt")
    assert (found.exit_code, found.stdout) == (1, "")
    assert "missing.txt: there is no such file" in found.stderr


def test_the_texts_beside_a_bad_one_stay_in_one_batch(monkeypatch, capsys):
    """A batch is halved until the bad text is alone: the others are not answered one by one."""
    sizes = []

    def answer(texts, first):
        if "bad" in texts:
            raise TextError("it is bad")
        sizes.append(len(texts))
        return [first + i for i in range(len(texts))]

    block = [Item(text="bad" if i == 100 else str(i), place=f"x:{i + 1}") for i in range(400)]
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(Exception, match="1"):
        print_answers([block], answer, as_json=False, plain=str, record=dict)
    assert sys.stdout.getvalue().splitlines() == [f"{i}\t{i}" if i != 100 else "bad\t" for i in range(400)]
    assert capsys.readouterr().err == "x:101: it is bad\n1 of 400 lines has no result\n"
    assert len(sizes) < 20
