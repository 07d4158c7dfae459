"""problem_type of config.json: scores as in the pipelines of transformers."""

from pathlib import Path

import pytest
from test_peft_folders import encoder

import clearhead as ch
from clearhead.errors import InputError
from clearhead.weights import WeightsError
from support.command_line import call

transformers = pytest.importorskip("transformers")
TEXT = "the film was fine"
CASES = {
    "softmax": ({"num_labels": 3}, "softmax"),
    "a named softmax": ({"num_labels": 3, "problem_type": "single_label_classification"}, "softmax"),
    "several labels": ({"num_labels": 3, "problem_type": "multi_label_classification"}, "sigmoid"),
    "one output": ({"num_labels": 1}, "sigmoid"),
    "regression": ({"num_labels": 1, "problem_type": "regression"}, "value"),
    "regression of two": (
        {"problem_type": "regression", "id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}},
        "value",
    ),
}


@pytest.mark.parametrize("family", ["bert", "distilbert"])
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_their_pipeline(case: str, family: str, tmp_path: Path) -> None:
    words, scores = CASES[case]
    folder = encoder(tmp_path / "base", family, "ForSequenceClassification", **words)
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}'
    )
    bundle = ch.load(folder, device="cpu")
    assert bundle.scores == scores

    def expected(one: Path) -> list[tuple[str, float]]:
        found = transformers.pipeline("text-classification", model=str(one), top_k=None)([TEXT])[0]
        return [(each["label"], each["score"]) for each in found]

    ours = ch.classify(bundle, TEXT)
    assert dict(ours) == pytest.approx(dict(expected(folder)), abs=1e-6)
    for layout in ("clearhead", "huggingface"):
        again = ch.load(ch.save(bundle, tmp_path / layout, layout=layout), device="cpu")
        assert again.scores == scores
        assert ch.classify(again, TEXT) == ours
    assert dict(expected(tmp_path / "huggingface")) == pytest.approx(dict(ours), abs=1e-6)


def test_a_model_of_scores_is_not_evaluated_as_a_classifier(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "base", "bert", "ForSequenceClassification", num_labels=1)
    (tmp_path / "rows.tsv").write_text("the film\tLABEL_0\n")
    with pytest.raises(InputError, match="gives scores, not classes: expected a classifier of two classes or more"):
        ch.evaluate(ch.load(folder, device="cpu"), tmp_path / "rows.tsv")


def test_an_unknown_problem_type_is_refused(tmp_path: Path) -> None:
    path = encoder(tmp_path, "bert", "ForSequenceClassification", num_labels=2) / "config.json"
    path.write_text(path.read_text().replace('"model_type"', '"problem_type": "guess",\n "model_type"'))
    with pytest.raises(WeightsError, match="problem_type is 'guess': expected one of single_label_classification"):
        ch.load(tmp_path, device="cpu")


def test_the_values_of_a_regression_are_printed_as_numbers(tmp_path: Path) -> None:
    words = {"num_labels": 1, "problem_type": "regression"}
    folder = encoder(tmp_path, "bert", "ForSequenceClassification", **words)
    (label, value), *_ = ch.classify(ch.load(folder, device="cpu"), TEXT)
    result = call("classify", folder, TEXT, "--device", "cpu")
    assert result.output.split() == [label, f"{value:.4g}"]
