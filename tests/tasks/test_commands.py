"""The subcommands of language models print what their public functions return."""

import json

import pytest
import torch

from clearhead import Bundle, build
from clearhead.tasks import classify, embed, fill, generate
from clearhead.tokens import Subwords
from clearhead.weights import load, save
from support.command_line import call, output

TEXTS = ["the cat sat on the mat", "a dog ran to the cat", "two cats and a dog"] * 4
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def objects(*words: object, stdin: str = "") -> list[dict]:
    """The JSON objects that a command prints, one per line."""
    return [json.loads(line) for line in output(*words, stdin=stdin).splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models with random weights: GPTs with a chat template, without one, and without a tokenizer; two BERTs."""
    torch.manual_seed(0)
    home, tokens = tmp_path_factory.mktemp("models"), Subwords.of(TEXTS, size=300)
    sizes = {"context": 64, "width": 16, "depth": 1, "heads": 2}
    writer = build("gpt", vocab=len(tokens), positions="rotary", **sizes)
    save(Bundle(writer, tokens, writer.config, chat=TEMPLATE), home / "writer")
    save(Bundle(writer, tokens, writer.config), home / "no-chat")
    save(Bundle(writer, None, writer.config), home / "no-tokenizer")
    filler = build("bert", vocab=len(tokens) + 1, **sizes)  # and [MASK]
    save(Bundle(filler, tokens, filler.config), home / "filler")
    sorter = build("bert", vocab=len(tokens) + 1, answer="class", classes=2, **sizes)
    save(Bundle(sorter, tokens, sorter.config, labels=("bad", "good")), home / "sorter")
    return home


def test_generate_prints_the_text_of_generate(folder):
    bundle = load(folder / "writer", device="cpu")
    chosen = {"max_new": 12, "temperature": 0.9, "seed": 3}
    options = [f"{name}={value}" for name, value in chosen.items()]
    expected = generate(bundle, "the cat", **chosen)
    assert output("generate", folder / "writer", "the cat", *options) == expected.text + "\n"
    assert output("generate", folder / "writer", "-", *options, stdin="the cat") == expected.text + "\n"
    result = json.loads(output("generate", folder / "writer", "the cat", *options, "--json"))
    assert (result["pieces"], result["seed"]) == (expected.pieces, 3)
    several = output("generate", folder / "writer", "the cat", *options, "samples=2")
    both = generate(bundle, "the cat", samples=2, **chosen)
    numbered = [
        f"{i}:{' ' * (not text[:1].isspace())}{text}" for i, text in enumerate((both.text, both.others[0].text), 1)
    ]
    assert several == "\n\n".join(numbered) + "\n"


def test_generate_samples_anew_each_time_unless_a_seed_is_given(folder):
    words = ("generate", folder / "writer", "the cat", "max_new=20", "temperature=1.0")
    assert len({output(*words) for _ in range(3)}) == 3
    results = [json.loads(output(*words, "--json")) for _ in range(3)]
    assert len({result["text"] for result in results}) == 3
    assert len({result["seed"] for result in results}) == 3
    for result in results:  # the seed that is shown gives the same text again
        assert output(*words, f"seed={result['seed']}") == result["text"] + "\n"
    greedy = [json.loads(output("generate", folder / "writer", "the cat", "max_new=20", "--json")) for _ in range(2)]
    assert greedy[0] == greedy[1]
    assert greedy[0]["seed"] is None


def test_chat_sends_the_whole_conversation(folder):
    once = output("chat", folder / "writer", "max_new=5", stdin="a dog\n\n")
    twice = output("chat", folder / "writer", "max_new=5", "--system", "be kind", stdin="a dog\na cat\n")
    bundle = load(folder / "writer", device="cpu")
    prompt = "user: a dog\nassistant:"
    assert once == generate(bundle, prompt, max_new=5).text + "\n"
    first = generate(bundle, f"system: be kind\n{prompt}", max_new=5).text
    second = f"system: be kind\nuser: a dog\nassistant: {first}\nuser: a cat\nassistant:"
    assert twice == f"{first}\n{generate(bundle, second, max_new=5).text}\n"


def test_fill_classify_and_embed_print_what_their_functions_return(folder, tmp_path):
    masks = fill(load(folder / "filler", device="cpu"), "the [MASK] sat", top=3)
    assert objects("fill", folder / "filler", "the [MASK] sat", "--top", 3, "--json") == [
        {"input": "the [MASK] sat", "masks": [[[word, pytest.approx(share)] for word, share in masks[0]]]}
    ]
    assert output("fill", folder / "filler", "the [MASK] sat", "--top", 1) == f"{masks[0][0][0]} {masks[0][0][1]:.1%}\n"
    path, texts = tmp_path / "texts.txt", ["the cat", "a dog ran"]
    path.write_text("\n".join(texts))
    classes = classify(load(folder / "sorter", device="cpu"), texts)
    assert objects("classify", folder / "sorter", path, "--json") == [
        {"input": text, "classes": [[name, pytest.approx(share)] for name, share in one]}
        for text, one in zip(texts, classes, strict=True)
    ]
    (name, share), *_ = classes[0]
    assert output("classify", folder / "sorter", "the cat", "--top", 1) == f"{name} {share:.1%}\n"
    assert output("classify", folder / "sorter", path, "--top", 1).startswith(
        f"the cat\t{name} {share:.1%}\na dog ran\t"
    )
    vectors = embed(load(folder / "writer", device="cpu"), texts)
    for inputs in ([path], texts):
        assert objects("embed", folder / "writer", *inputs) == [
            {"input": text, "vector": pytest.approx(row, abs=1e-6)}
            for text, row in zip(texts, vectors.tolist(), strict=True)
        ]


def test_score_reads_a_text_or_lines(folder):
    (given,) = objects("score", folder / "writer", "the cat sat", "--json")
    assert given["pieces"][0] == "the"
    lines = "the cat sat\na dog ran to the cat\nthe\tmat"
    found = objects("score", folder / "writer", "-", "--json", stdin=lines)
    assert [one["input"] for one in found] == lines.split("\n")
    assert found[0]["logprob"] == pytest.approx(given["logprob"], abs=1e-4)  # in a batch as alone
    plain = [line.split("\t") for line in output("score", folder / "writer", "-", stdin=lines).splitlines()]
    assert plain[0] == ["the cat sat", f"{found[0]['logprob']:.2f}", f"{found[0]['perplexity']:.2f}"]
    assert plain[2][0] == "the mat"  # a tab would be the end of the field


def test_an_output_file_that_cannot_be_written_is_an_error_before_any_work(folder, tmp_path):
    (tmp_path / "rows.tsv").write_text("the cat\tgood\n")
    words = ["evaluate", str(folder / "sorter"), str(tmp_path / "rows.tsv"), "--out", str(tmp_path)]
    found = call(*words)
    assert found.exit_code == 1
    assert f"--out {tmp_path}: expected the name of a file" in found.output
    assert "accuracy" not in found.output


def test_parity_lists_the_tensors_of_a_folder(folder):
    result = json.loads(output("parity", folder / "writer", "--json"))
    assert result["model"] == "gpt"
    assert "embed.table" in result["used"]


def test_an_error_is_one_sentence(folder):
    for words, sentence in [
        (("generate", folder / "filler", "the"), "this BERT cannot generate"),
        (("generate", folder / "writer", "the", "top_q=1"), "top_p"),
        (("fill", folder / "writer", "a [MASK]"), "this GPT cannot fill"),
        (("fill", folder / "filler", "no mask"), "expected one or more [MASK]"),
        (("classify", folder / "writer", "the"), "this GPT cannot classify"),
        (("classify", folder / "sorter", "misspelt.txt"), "misspelt.txt: there is no such file; expected a text, a"),
        (("embed", folder / "writer", folder), "this is a folder; expected a text"),
        (("chat", folder / "no-chat"), "no chat template"),  # before anything is typed
        (("generate", folder / "no-tokenizer", "the"), "this GPT has no tokenizer"),
        (("generate", "everyday", "the", f"max_new={10**20}"), "a number is too large: expected less than 2^63"),
        (("generate", "everyday", "the", f"max_new={10**13}"), "out of memory when"),  # petabytes
        (("generate", folder / "writer", "the", "--dtype", "int4"), "the nearest is int8"),
        (("evaluate", folder / "writer", "shakesper"), "shakespeare"),
        (("score", folder / "no-chat", "a"), "'a' is one token"),
    ]:
        found = call(*words)
        assert found.exit_code == 1
        assert sentence in found.output
        assert len(found.output.splitlines()) == 1
        assert "Traceback" not in found.output
