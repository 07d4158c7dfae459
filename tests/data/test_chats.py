"""Chats: the ids of transformers' chat templates, only answers as targets, packing, and bad conversations."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from chat_folder import CHATML, chat, chat_folder, spaced_folder, write_jsonl

import clearhead as ch
from clearhead.config import ConfigError
from clearhead.data import IGNORE, DataError, make_data
from clearhead.data.text.chats import pack
from clearhead.tasks.generate import conversation

CHATS = [
    chat("What is the capital of France?", "Paris."),
    chat("hello!", "hello!", "1 2", "3, of course.", system="You count."),
    chat("Write it.", "\n  two lines\nand a space ", "again", "no"),
    chat("größer", "<|im_start|> is a token, é is not"),
    chat("a", "b"),
]
COUNT = 40


@pytest.fixture
def folder(tmp_path):
    chat_folder(tmp_path / "model")
    rows = [{"messages": CHATS[i % 5] if i < 5 else chat(f"What is {i}?", f"It is {i}.")} for i in range(COUNT)]
    write_jsonl(tmp_path / "chats.jsonl", rows)
    return tmp_path


def open_chats(folder, rows=None, *, template=None, **options):
    if rows is not None:
        write_jsonl(folder / "chats.jsonl", rows)
    if template is not None:
        chat_folder(folder / "model", template)
    options = {"path": "chats.jsonl", "tokens": "model", "share": 0.0, "batch_tokens": 256, "longest": 128} | options
    return make_data("chats", options, seed=0, root=folder)


def rows_of(data):
    """Each conversation of an epoch: its ids and targets without padding."""
    found = []
    for step in range(data.steps_per_epoch):
        batch = data.batch(step)
        for number, (ids, targets) in enumerate(zip(batch["ids"], batch["targets"], strict=True)):
            documents = batch["documents"][number] if "documents" in batch else (ids == data.special.pad).astype(int)
            for document in range(documents.max() + (ids[-1] != data.special.pad)):
                found.append((ids[documents == document].tolist(), targets[documents == document].tolist()))
    return sorted(found)


@pytest.mark.parametrize("pack", [False, True])
def test_ids_and_targets_are_those_of_transformers(folder, pack):
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder / "model")
    expected = []
    for messages in CHATS:
        theirs = tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = np.array(theirs["input_ids"]), np.array(theirs["assistant_masks"])
        assert mask.sum() > 0
        expected.append((ids.tolist(), np.append(np.where(mask, ids, IGNORE)[1:], IGNORE).tolist()))
    data = open_chats(folder, [{"messages": messages} for messages in CHATS], pack=pack)
    assert rows_of(data) == sorted(expected)


def test_a_prompt_of_chat_is_the_beginning_of_what_was_trained(folder):
    """The tokens before an answer are those that `chat` gives the model, also where a token would cross the border."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role[0] }}{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
    )
    data = open_chats(folder, [{"messages": chat("hello!", "ssistant")}], template=template)
    model = ch.build("gpt", vocab=len(data.tokens), context=128, width=8, depth=1, heads=2)
    bundle = ch.Bundle(model, data.tokens, special=data.special, chat=data.chat)
    prompt, ((ids, targets),) = conversation(bundle, chat("hello!")), rows_of(data)
    text = "".join(data.tokens.pieces(ids))
    assert text == "<|im_start|>uhello!<|im_end|><|im_start|>assistant<|im_end|>"
    assert ids != data.tokens.marked(text).tolist()  # in which "assistant" is one token
    assert ids[: len(prompt)] == prompt
    assert set(targets[: len(prompt) - 1]) == {IGNORE}
    assert targets[len(prompt) - 1 : -1] == ids[len(prompt) :]


def test_only_answers_and_the_end_of_the_turn_are_targets(folder):
    data = open_chats(folder, [{"messages": CHATS[1]}])
    ((ids, targets),) = rows_of(data)
    counted = [i for i in targets if i != IGNORE]
    assert "".join(data.tokens.pieces(counted)) == "hello!<|im_end|>3, of course.<|im_end|>"
    assert [t for t, i in zip(targets, ids[1:], strict=False) if t not in (IGNORE, i)] == []
    assert data.special.ends == (data.tokens.special_names["<|im_end|>"],)
    assert data.chat == CHATML
    assert data.sizes == {"vocab": len(data.tokens)}


@torch.no_grad()
def test_a_packed_row_has_the_loss_of_its_conversations(folder):
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=320, context=128, width=16, depth=2, heads=2, positions="rotary").double()
    losses, rows = [], []
    for packs in (False, True):
        data, total, count = open_chats(folder, pack=packs), 0.0, 0
        for step in range(data.steps_per_epoch):
            batch = {key: torch.from_numpy(x) for key, x in data.batch(step).items()}
            more = {key: batch[key] for key in ("documents", "at") if key in batch}
            assert bool(more) == packs
            logits = model(batch["ids"], **more)
            total += float(F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum"))
            count += int((batch["targets"] != IGNORE).sum())
        losses.append((total / count, count))
        rows.append(rows_of(data))
    assert losses[0][1] == losses[1][1] > COUNT
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-9)
    assert rows[0] == rows[1]
    assert open_chats(folder, pack=True).steps_per_epoch < open_chats(folder).steps_per_epoch


def test_items_are_packed_once_and_fit():
    sizes = np.random.default_rng(0).integers(1, 60, 200).tolist()
    rows = pack(sizes, 64)
    assert sorted(i for row in rows for i in row) == list(range(200))
    assert max(sum(sizes[i] for i in row) for row in rows) <= 64
    assert len(rows) <= 1.1 * sum(sizes) / 64 + 1


SAME = [{"messages": chat("one", "two")}, {"messages": chat("three\nfour", "five")}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", "\n".join(map(json.dumps, SAME))),
        ("a.json", json.dumps(SAME)),
        ("a.csv", 'prompt,answer\none,two\n"three\nfour",five\n'),
        ("b.csv", 'Question;Answer\none;two\n"three\nfour";five\n'),
        ("a.json", json.dumps([{"instruction": "one", "output": "two", "input": ""},
                               {"instruction": "three", "input": "four", "output": "five"}])),
        ("a.json", json.dumps([{"Instruction": "one", "Output": "two", "Input": ""},
                               {"Instruction": "three", "Input": "four", "Output": "five"}])),
        ("b.jsonl", "\n".join(json.dumps({"Messages": row["messages"]}) for row in SAME)),
        ("b.jsonl", "\n".join(json.dumps({"conversations": [
            {"from": {"user": "human", "assistant": "gpt"}[m["role"]], "value": m["content"]} for m in row["messages"]
        ]}) for row in SAME)),
    ],
)  # fmt: skip
def test_all_forms_of_a_conversation_are_read(folder, name, content):
    expected = rows_of(open_chats(folder, SAME))
    (folder / name).write_text(content)
    assert rows_of(open_chats(folder, path=name)) == expected


def test_columns_are_chosen_by_name(folder):
    rows = [{"q": "one", "a": "two", "answer": "other", "system": "Be brief."}]
    data = open_chats(folder, rows, prompt="q", answer="a")
    assert "Be brief." in data.tokens.decode(np.array(rows_of(data)[0][0]))
    assert "two" in data.tokens.decode(np.array(rows_of(data)[0][0]))
    with pytest.raises(DataError, match=r"no column 'qq': expected one of q, a, answer, system; the nearest is q"):
        open_chats(folder, prompt="qq")
    with pytest.raises(ConfigError, match="expected a column of messages, or two columns"):
        open_chats(folder, prompt="q", messages="m")


def test_columns_of_a_csv_file_are_chosen_by_name_or_number(folder):
    expected = rows_of(open_chats(folder, SAME))
    body = 'one,two\n"three\nfour",five\n'
    for head, columns in (
        ("Utterance,Reply\n", {"prompt": "Utterance", "answer": "Reply"}),
        ("x,y\n", {"prompt": "x", "answer": "y", "header": True}),
        ("", {"prompt": "1", "answer": "2"}),
    ):
        (folder / "c.csv").write_text(head + body)
        assert rows_of(open_chats(folder, path="c.csv", **columns)) == expected


def test_a_system_prompt_in_capitals_is_read(folder):
    rows = [{"Instruction": "one", "Input": "more", "Output": "two", "System": "Be brief."}]
    text = "".join(open_chats(folder, rows).tokens.pieces(rows_of(open_chats(folder, rows))[0][0]))
    assert "system\nBe brief." in text
    assert "user\none\nmore" in text


def test_conversations_without_answers_are_left_out_and_counted(folder):
    rows = [
        {"messages": chat("a", "b", "and then?")},  # what follows the last answer is dropped
        {"messages": chat("a")},
        {"messages": []},
        {"messages": chat("a", "  ")},
        {"messages": chat("", "b")},
    ]
    data = open_chats(folder, rows)
    assert rows_of(data) == rows_of(open_chats(folder, [{"messages": chat("a", "b")}]))
    assert "2 left out, which have no answer; 2 left out, which have an empty message" in data.description
    with pytest.raises(DataError, match="no conversation with an answer: 1 without one, and 0 with an empty message"):
        open_chats(folder, [{"messages": chat("a")}])


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "asistant", "content": "a"}], "message 1: role = 'asistant': .*the nearest is assistant"),
        (
            [*chat("a", "b"), {"role": "user"}],
            "message 3 is {'role': 'user'}: expected an object with role and content",
        ),
        ([{"role": [], "content": "a"}], r"message 1: role = \[\]: expected one of system, user, assistant"),
        ([{"role": "user", "content": "a \ud83d"}], r"message 1: '.ud83d' is half a character, at 2"),
        ([{"role": "user", "content": ["a"]}], r"message 1: content is \['a'\]: expected text"),
        ("hello", "has str: expected a list of messages"),
        ([*chat("a", "b", system="x"), {"role": "system", "content": "y"}], "a system message that is not the first"),
        ([*chat("a", "b"), {"role": "system", "content": "y"}], "a system message that is not the first"),
    ],
)
def test_bad_conversations_are_refused_with_their_line(folder, messages, words):
    with pytest.raises(DataError, match=rf"chats\.jsonl:2: .*{words}"):
        open_chats(folder, [{"messages": chat("a", "b")}, {"messages": messages}])


def test_long_conversations_lose_their_oldest_turns_or_are_left_out(folder):
    long = chat(*(f"turn {i}" for i in range(20)), system="Keep me.")
    rows = [{"messages": long}, {"messages": chat("a " * 200, "b")}]
    data = open_chats(folder, rows, longest=64)
    ((ids, targets),) = rows_of(data)
    text = data.tokens.decode(np.array(ids))
    assert len(ids) <= 64
    assert "Keep me." in text
    assert "turn 19" in text
    assert "turn 0" not in text
    first = next(i for i in range(20) if f"turn {i}\n" in text)
    assert first % 2 == 0  # it begins with a question
    shorter = chat(*(f"turn {i}" for i in range(first, 20)), system="Keep me.")
    longer = chat(*(f"turn {i}" for i in range(first - 2, 20)), system="Keep me.")
    assert rows_of(open_chats(folder, [{"messages": shorter}])) == [(ids, targets)]
    assert len(rows_of(open_chats(folder, [{"messages": longer}]))[0][0]) > 64
    assert "1 without their oldest turns, to fit into longest=64 tokens; 1 left out, whose last" in data.description


def test_the_same_question_is_not_in_both_parts(folder):
    rows = [{"prompt": f"question {i % 30}", "answer": f"answer {i}"} for i in range(90)]
    data = open_chats(folder, rows, share=0.3)
    pieces = [
        [data.tokens.decode(row) for row in batch["ids"]] for batch in map(data.batch, range(data.steps_per_epoch))
    ]
    train = {text.split("user\n")[1].split("assistant")[0] for part in pieces for text in part}
    valid = {
        text.split("user\n")[1].split("assistant")[0]
        for index in range(data.valid_batches)
        for text in map(data.tokens.decode, data.valid(index)["ids"])
    }
    assert len(train | valid) == 30
    assert not train & valid
    assert valid
    write_jsonl(folder / "v.jsonl", rows[:4])
    assert open_chats(folder, valid_path="v.jsonl").description == (
        "90 conversations to train on, 4 for validation (v.jsonl); 4 conversations of validation are in training too"
    )


def test_a_folder_without_a_template_is_refused(folder):
    ch.tokens.save(ch.tokens.Words(["a"]), folder / "words")
    with pytest.raises(DataError, match="tokens='words' has no chat template"):
        open_chats(folder, tokens="words")
    with pytest.raises(DataError, match="tokens='nothing': there is no tokenizer"):
        open_chats(folder, tokens="nothing")


def test_a_template_that_changes_earlier_messages_is_refused(folder):
    last = "{% for m in messages %}{{ loop.last }}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    assert len(rows_of(open_chats(folder, SAME, template=CHATML))) == 2
    with pytest.raises(DataError, match=r"chats.jsonl:1: the chat template does not write .*the answer in message 2"):
        open_chats(folder, SAME, template=last)


def test_a_conversation_may_begin_with_the_assistant(folder):
    """The answer before the first question is context: the template writes no default system message before it."""
    rows = [{"messages": [{"role": "assistant", "content": "Hello."}, *chat("hello!", "1 2")]},
            {"messages": [{"role": "assistant", "content": "Hello."}]}]  # fmt: skip
    template = CHATML.replace("messages[0].role != 'system'", "messages and messages[0].role != 'system'")
    data = open_chats(folder, rows, template=template)
    ((ids, targets),) = rows_of(data)
    assert "system\nBe kind.<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>" in "".join(data.tokens.pieces(ids))
    assert "".join(data.tokens.pieces([i for i in targets if i != IGNORE])) == "1 2<|im_end|>"
    assert "1 left out, which have no answer" in data.description


SPOKEN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content + (eos_token if m.role == 'assistant' else '\n') }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.mark.parametrize("kind", ["prepend", "first", "always"])
def test_tokenizers_that_put_a_space_before_a_text_put_none_inside(tmp_path, kind):
    """As those of Llama and T5 do; " The" is a token, which crosses the border between "assistant: " and "The"."""
    folder = spaced_folder(tmp_path / "model", kind, SPOKEN)
    messages = chat("Who is the king?", "The king is dead.", "Why?", "War.")
    data = open_chats(tmp_path, [{"messages": messages}], tokens=str(folder), rounding=1)
    ids, targets = (data.batch(0)[key][0].tolist() for key in ("ids", "targets"))
    text = "user: Who is the king?\nassistant: The king is dead.</s>user: Why?\nassistant: War.</s>"
    begin = "</s>user" if kind == "first" else "</s> user"  # the others put one after a special token, too
    assert "".join(data.tokens.pieces(ids)).lstrip() == text.replace("</s>user", begin).replace("\n", " ")
    answers = [data.tokens.pieces([i])[0] for i in targets if i != IGNORE]
    assert "".join(answers) == "The king is dead.</s>War.</s>"
    model = ch.build("gpt", vocab=len(data.tokens), context=128, width=8, depth=1, heads=2)
    prompt = conversation(ch.Bundle(model, data.tokens, special=data.special, chat=data.chat), messages[:1])
    assert ids[: len(prompt)] == prompt


def test_the_time_of_a_long_conversation_grows_with_its_length(folder, monkeypatch):
    encoded = []
    real = ch.tokens.Subwords.marked
    monkeypatch.setattr(ch.tokens.Subwords, "marked", lambda self, text: encoded.append(len(text)) or real(self, text))
    for turns in (40, 80):
        for longest in (64, 4096):
            rows = [{"messages": chat(*(f"turn {i} of it" for i in range(turns)))}]
            before = sum(encoded)
            open_chats(folder, rows, longest=longest, batch_tokens=4096)
            assert sum(encoded) - before < 7 * turns * len("<|im_start|>assistant\nturn 00 of it<|im_end|>\n")


def test_a_template_that_refuses_a_conversation_is_reported_with_its_line(folder):
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
    rows = [{"messages": chat("a", "b")}, {"messages": chat("a", "b", system="x")}]
    with pytest.raises(DataError, match=r"chats.jsonl:2: the chat template cannot render .*no system role"):
        open_chats(folder, rows, template=template)


@pytest.mark.parametrize("pack", [False, True])
def test_a_run_on_chats_can_chat(folder, pack, tmp_path):
    options = {"path": "chats.jsonl", "tokens": "model", "batch_tokens": 512, "longest": 128, "pack": pack}
    recipe = {
        "steps": 3,
        "data": {"name": "chats", **options},
        "model": {"name": "gpt", "width": 16, "depth": 1, "heads": 2},
    }
    run = ch.train(recipe, out=tmp_path / "run", data=folder, device="cpu", quiet=True)
    assert np.isfinite(run.metrics[-1]["valid_loss"])
    model = ch.load(tmp_path / "run", device="cpu")
    assert model.chat == CHATML
    assert model.special.ends == (model.tokens.special_names["<|im_end|>"],)
    assert isinstance("".join(ch.chat(model, chat("hello!"), max_new=3)), str)
    again = make_data("chats", options | {"tokens": str(tmp_path / "run")}, seed=0, root=folder)  # its own tokenizer
    assert (again.chat, again.special) == (model.chat, model.special)
