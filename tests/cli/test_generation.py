"""generate and chat print what their functions return, as text or as JSON, at the end or token by token."""

import json
import re

import pytest
import torch

from clearhead import Bundle, build
from clearhead.tasks import conversation, generate
from clearhead.tokens import Subwords
from clearhead.weights import load, save
from support.command_line import call

TEXTS = ["the cat sat on the mat", "a dog ran to the cat", "two cats and a dog"] * 4
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
QUESTION = {"role": "user", "content": "a dog\nand a cat"}
HISTORY = [{"role": "user", "content": "a dog"}, {"role": "assistant", "content": "ran"}, QUESTION]


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    torch.manual_seed(0)
    tokens = Subwords.of(TEXTS, size=300)
    model = build("gpt", vocab=len(tokens), positions="learned", context=128, width=16, depth=1, heads=2)
    return save(Bundle(model, tokens, model.config, chat=TEMPLATE), tmp_path_factory.mktemp("models") / "writer")


def objects(*words, stdin=""):
    found = call(*words, stdin=stdin)
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.stdout.splitlines()]


def answer(writer, messages, **options):
    bundle = load(writer, device="cpu")
    return generate(bundle, bundle.tokens.decode(conversation(bundle, messages)), **options)


def file_of(path, *lines):
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


# generate


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}, {"stop": "e"}, {"repetition": 1.3}])
def test_streamed_json_is_an_object_per_token_and_then_the_result(writer, options):
    words = [f"{name}={value}" for name, value in options.items()]
    *pieces, last = objects("generate", writer, "the cat", "max_new=12", *words, "--stream", "--json")
    assert [last] == objects("generate", writer, "the cat", "max_new=12", *words, "--json")
    assert all(piece.keys() == {"piece", "id", "logprob"} for piece in pieces)
    assert "".join(piece["piece"] for piece in pieces) == last["text"]
    tokens = [piece for piece in pieces if piece["id"] is not None]
    assert len(tokens) == len(last["pieces"])
    assert last["pieces"] == load(writer, device="cpu").tokens.pieces([piece["id"] for piece in tokens])
    assert sum(piece["logprob"] for piece in tokens) == pytest.approx(last["logprob"], abs=1e-4)


@torch.no_grad()
def test_the_log_probability_of_a_piece_is_that_of_its_token(writer):
    *pieces, _ = objects("generate", writer, "the cat", "max_new=5", "temperature=2.0", "seed=1", "--stream", "--json")
    bundle = load(writer, device="cpu")
    prompt, ids = bundle.prompt("the cat"), [piece["id"] for piece in pieces if piece["id"] is not None]
    logp = bundle.model(torch.tensor([prompt + ids]))[0].log_softmax(-1)
    expected = [float(logp[len(prompt) - 1 + i, token]) for i, token in enumerate(ids)]
    assert [piece["logprob"] for piece in pieces][: len(ids)] == pytest.approx(expected, abs=1e-4)


def test_several_answers_cannot_be_streamed(writer):
    for option in ("samples=2", "beams=2"):
        found = call("generate", writer, "the cat", option, "--stream", "--json")
        assert (found.exit_code, found.stdout) == (1, "")
        assert "--stream: expected one answer" in found.stderr


# chat


def test_chat_prints_each_answer_as_a_message(writer):
    first, second = objects("chat", writer, "max_new=5", "--json", stdin="a dog\na cat\n\n")
    expected = answer(writer, HISTORY[:1], max_new=5)
    assert first == {
        "role": "assistant", "content": expected.text, "logprob": pytest.approx(expected.logprob, abs=1e-4),
        "pieces": expected.pieces, "ended": expected.ended, "seed": None,
    }  # fmt: skip
    told = [HISTORY[0], {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "a cat"}]
    assert second["content"] == answer(writer, told, max_new=5).text
    *pieces, last = objects("chat", writer, "max_new=5", "--json", "--stream", stdin="a dog\n")
    assert last == first
    assert "".join(piece["piece"] for piece in pieces) == first["content"]


def test_the_messages_of_a_file_are_one_conversation(writer, tmp_path):
    path = file_of(tmp_path / "messages.jsonl", *HISTORY[:2], "", HISTORY[2])
    expected = answer(writer, HISTORY, max_new=5).text
    assert call("chat", writer, "max_new=5", "--messages", path).stdout == expected + "\n"
    assert [one["content"] for one in objects("chat", writer, "max_new=5", "--messages", path, "--json")] == [expected]
    found = call("chat", writer, "max_new=5", "--messages", "-", "--system", "be kind", stdin=path.read_text())
    kind = answer(writer, [{"role": "system", "content": "be kind"}, *HISTORY], max_new=5).text
    assert found.stdout == kind + "\n"


def test_conversations_in_the_words_of_sharegpt_are_answered(writer, tmp_path):
    words = {"user": "human", "assistant": "gpt"}
    theirs = [{"from": words[one["role"]], "value": one["content"]} for one in HISTORY]
    expected = answer(writer, HISTORY, max_new=5).text
    for path in (
        file_of(tmp_path / "chats.jsonl", {"conversations": theirs}),
        file_of(tmp_path / "messages.jsonl", *theirs),
    ):
        assert objects("chat", writer, "max_new=5", "--messages", path, "--json")[0]["content"] == expected


def test_each_conversation_of_a_file_is_answered_and_bad_ones_are_named(writer, tmp_path):
    long = [{"role": "user", "content": "a dog " * 500}]
    lines = [
        {"messages": HISTORY[:1]}, {"messages": HISTORY[:2]}, "{not json", HISTORY[0], {"messages": [{"role": "user"}]},
        {"messages": []}, {"messages": long}, {"messages": HISTORY},
    ]  # fmt: skip
    path = file_of(tmp_path / "chats.jsonl", *lines)
    expected = [answer(writer, messages, max_new=5).text for messages in (HISTORY[:1], HISTORY)]
    found = call("chat", writer, "max_new=5", "--messages", path, "--json")
    assert found.exit_code == 1
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert [row.get("content") for row in rows] == [expected[0], *[None] * 6, expected[1]]
    assert [row.get("messages") for row in rows] == [
        HISTORY[:1], HISTORY[:2], None, None, [{"role": "user"}], [], long, HISTORY
    ]  # fmt: skip
    *problems, last = found.stderr.splitlines()
    assert last == "6 of 8 lines have no result"
    for number, (problem, words) in enumerate(
        zip(
            problems,
            [
                "the last message is the assistant's", "not JSON", 'expected a conversation, {"messages": [...]}',
                "is not a message", "no messages", "this model reads 128 at once",
            ],
            strict=True,
        ),
        2,
    ):  # fmt: skip
        assert problem.startswith(f"{path}:{number}: ")
        assert words in problem
    plain = call("chat", writer, "max_new=5", "--messages", path).stdout
    assert [line for line in plain.splitlines() if line] == [" ".join(text.splitlines()) for text in expected]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty: expected messages, one JSON object per line"),
        ('{"role": "user", "content": "a"}\n{"role": 3}\n', ":2: .*is not a message: expected"),
        ('"a dog"\n', ":1: \"a dog\" is not a message"),
        ('{"role": "assistant", "content": "a"}\n', "the last message is the assistant's: expected one to answer"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_answered_are_an_error(writer, tmp_path, content, message):
    path = tmp_path / "messages.jsonl"
    path.write_text(content)
    found = call("chat", writer, "--messages", path)
    assert (found.exit_code, found.stdout) == (1, "")
    assert re.search(message, found.stderr)


def test_a_message_may_say_messages(writer, tmp_path):
    path = tmp_path / "messages.jsonl"
    path.write_text(json.dumps({"role": "user", "content": "messages"}) + "\n")
    found = call("chat", writer, "max_new=2", "--messages", path)
    assert (found.exit_code, found.stderr) == (0, "")


def test_a_file_of_messages_that_does_not_exist_is_an_error(writer):
    found = call("chat", writer, "--messages", "missing.jsonl")
    assert (found.exit_code, found.stdout) == (1, "")
    assert "there is no file or folder" in found.stderr


# words of the command line


@pytest.mark.parametrize("words", [["--max_new", "60"], ["--max_new=60"], ["--max-new", "60"]])
def test_an_option_with_dashes_is_told_how_it_is_written(words):
    found = call("generate", "everyday", "The man", *words)
    assert found.exit_code == 2
    assert "written NAME=VALUE: max_new=60" in " ".join(found.stderr.replace("\u2502", " ").split())


def test_a_question_on_the_command_line_is_answered(writer):
    expected = objects("chat", writer, "max_new=4", "--json", stdin="a dog\n\n")
    assert objects("chat", writer, "a dog", "max_new=4", "--json") == expected
    assert "2 questions, ['a', 'dog']: expected one, in quotes" in call("chat", writer, "a", "dog").stderr
    assert "a question and --messages" in call("chat", writer, "a", "--messages", "-").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "everyday", "A", "seed=1", "seed=2"], "seed is given twice, seed=1 and seed=2: expected it once"),
        (["train", "x.toml", "steps=1", "steps=2"], "steps is given twice, steps=1 and steps=2: expected it once"),
        (["classify", "x", "A", "--top", "1", "--top", "2"], "--top is given 2 times: expected it once"),
    ],
)
def test_a_value_given_twice_is_refused(words, message):
    found = call(*words)
    assert found.exit_code != 0
    assert message in found.stderr


def test_several_sentences_are_translated():
    lines = call("translate", "en-de", "A dog runs.", "A cat sleeps.", "beams=1").stdout.splitlines()
    assert lines == [
        call("translate", "en-de", text, "beams=1").stdout.strip() for text in ("A dog runs.", "A cat sleeps.")
    ]
