"""evaluate, for translators: the scores are those of its translations, of the right data and languages."""

import json

import pytest
import torch

from clearhead import Bundle, build, config, evaluate, load, save, translate
from clearhead.data.text.parallel import load_split
from clearhead.metrics import bleu, bleu_by, chrf
from clearhead.tokens import Pair, Words
from support.command_line import call

ENGLISH = ["A dog runs .", "The cat eats a mouse .", "Two dogs see the cat .", "A mouse sleeps ."]
GERMAN = ["Ein Hund rennt .", "Die Katze frisst eine Maus .", "Zwei Hunde sehen die Katze .", "Eine Maus schläft ."]


def bundle(seed: int = 0) -> Bundle:
    torch.manual_seed(seed)
    tokens = Pair(Words.of(ENGLISH), Words.of(GERMAN))
    model = build(
        "transformer", vocab=len(tokens.source), target_vocab=len(tokens.target), width=16, depth=1, heads=2, context=24
    )
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.5)  # so that every sentence has another translation
    return Bundle(model, tokens, model.config)


@pytest.fixture
def root(tmp_path):
    """A data folder of small sets with the names of the large ones."""
    for name in ("multi30k", "tatoeba"):
        (tmp_path / name).mkdir()
    for part, n in {"test_2016_flickr": 4, "test_2017_flickr": 3, "val": 2}.items():
        for language, texts in (("en", ENGLISH), ("de", GERMAN)):
            (tmp_path / "multi30k" / f"{part}.{language}").write_text("".join(f"{t}\n" for t in texts[:n]))
    pairs = [f"{i} {english}\t{german}\n" for i in range(25) for english, german in zip(ENGLISH, GERMAN, strict=True)]
    (tmp_path / "tatoeba" / "deu.txt").write_text("".join(pairs))
    return tmp_path


@pytest.fixture
def run(tmp_path):
    """The folder of a run, whose recipe gives the languages of its model."""

    def make(**data):
        save(bundle(), tmp_path / "run" / "model")
        config.write({"steps": 1, "data": data, "model": {"name": "transformer"}}, tmp_path / "run" / "recipe.toml")
        return tmp_path / "run"

    return make


def pair_file(path, sources=ENGLISH, targets=GERMAN):
    path.write_text("".join(f"{s}\t{t}\n" for s, t in zip(sources, targets, strict=True)))
    return path


def test_scores_are_those_of_the_translations(tmp_path):
    made, path = bundle(), pair_file(tmp_path / "test.tsv")
    finished = []
    found = evaluate(made, path, beams=2, limit=7, done=lambda *n: finished.append(n))
    texts = [one.text for one in translate(made, ENGLISH, beams=2, limit=7)]
    assert found.hypotheses == texts
    assert found.references == GERMAN
    assert found.scores == (bleu(texts, GERMAN), chrf(texts, GERMAN)) == (found.bleu, found.chrf)
    assert (found.sentences, finished) == (4, [(4, 4)])
    assert found.speed == pytest.approx(4 / found.seconds)
    assert found.cut == sum(one.cut for one in translate(made, ENGLISH, beams=2, limit=7)) > 0


def test_a_perfect_translation_scores_100(tmp_path):
    made = bundle()
    right = [one.text for one in translate(made, ENGLISH, beams=1, limit=7)]
    (tmp_path / "a.en").write_text("\r\n".join(ENGLISH))
    (tmp_path / "a.de").write_text("\n".join(right) + "\n")
    found = evaluate(made, [tmp_path / "a.en", tmp_path / "a.de"], beams=1, limit=7, batch_tokens=1)
    assert len(set(right)) == 4
    assert (found.bleu.value, found.chrf.value) == (pytest.approx(100), pytest.approx(100))
    assert evaluate(made, [tmp_path / "a.en", tmp_path / "a.de"], beams=3, limit=7, penalty=0.0).bleu.value < 100


def test_a_protocol_adds_its_score_to_the_plain_ones(tmp_path):
    made, path = bundle(), pair_file(tmp_path / "test.tsv")
    for protocol in ("moses", "words"):
        found = evaluate(made, str(path), beams=1, target="de", protocol=protocol)
        wanted = bleu_by(protocol, "de")(found.hypotheses, GERMAN)
        assert found.scores == (wanted, bleu(found.hypotheses, GERMAN), chrf(found.hypotheses, GERMAN))
    with pytest.raises(ValueError, match="protocol='moses' has rules for each language"):
        evaluate(made, path, protocol="moses")


def test_named_sets_are_split_and_joined(root):
    made, ways = bundle(), {"source": "en", "target": "de", "beams": 1, "limit": 4, "root": root}
    found = evaluate(made, "multi30k", **ways)
    assert (found.sentences, found.data) == (4, "multi30k test_2016_flickr en-de")
    assert evaluate(made, "multi30k", split="test_2017_flickr", **ways).references == GERMAN[:3]
    assert evaluate(made, "multi30k", split="valid", join=2, **ways).references == [" ".join(GERMAN[:2])]
    back = evaluate(made, "multi30k", **ways | {"source": "de", "target": "en"})
    assert (back.references, back.data) == (ENGLISH, "multi30k test_2016_flickr de-en")
    assert evaluate(made, "tatoeba", **ways).data == "tatoeba test en-de"


def test_languages_and_test_share_come_from_the_recipe_unless_given(root, run):
    folder = run(name="tatoeba", source="de", target="en", valid_share=0.1, test_share=0.3)
    made = load(folder, device="cpu")
    found = evaluate(made, "tatoeba", root=root, beams=1, limit=4)
    kept = load_split("tatoeba", "test", source="de", target="en", root=root, valid_share=0.1, test_share=0.3)
    assert found.references == [[y for x, y in zip(*kept, strict=True) if x == one] for one in dict.fromkeys(kept[0])]
    assert max(map(len, found.references)) > 1
    assert found.sentences == len(set(kept[0])) < len(kept[0])
    assert evaluate(made, "multi30k", root=root, beams=1, limit=4).references == ENGLISH
    other = evaluate(made, "multi30k", root=root, beams=1, limit=4, source="en", target="de")
    assert other.references == GERMAN  # options override the recipe


def test_a_recipe_without_languages_means_the_defaults(root, run):
    made = load(run(name="multi30k") / "model", device="cpu")
    assert evaluate(made, "multi30k", root=root, beams=1, limit=4).data == "multi30k test_2016_flickr en-de"


def test_hypotheses_are_single_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(Words, "decode", lambda self, ids: "ein\nHund")
    found = evaluate(bundle(), pair_file(tmp_path / "test.tsv"), beams=1, limit=2)
    assert found.hypotheses == ["ein Hund"] * 4


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ("multi3k", {}, "no file or folder .*multi3k, .*no set of that name.*the nearest is multi30k"),
        ("multi30k", {}, "several languages, .*: expected source and target, like source='en'"),
        ("multi30k", {"source": "en"}, "several languages"),
        ("multi30k", {"source": "en", "target": "de", "split": "val"}, "no part 'val': .*the nearest is valid"),
        ("multi30k", {"source": "en", "target": "nl"}, "multi30k has no 'nl'"),
        ("good.tsv", {"split": "test"}, "split='test': the model was not trained on .*good.tsv, which is"),
        ("good.tsv", {"join": 2}, "join=2 is for multi30k and tatoeba"),
        ("good.tsv", {"protocol": "mose"}, "protocol.*'mose'"),
        ("good.tsv", {"batch_tokens": 0}, "batch_tokens=0"),
        ("bad.tsv", {}, r"bad.tsv:2: expected 2 columns"),
        ("empty.tsv", {}, "empty.tsv is empty"),
        (["a", "b", "c"], {}, "3 files: expected one of source TAB target"),
        (["short.txt", "good.tsv"], {}, r"short.txt has 2 lines and .*good.tsv has 4"),
    ],
)
def test_wrong_data_and_options_raise(unchecked, tmp_path, root, data, options, words):
    pair_file(tmp_path / "good.tsv")
    (tmp_path / "bad.tsv").write_text("A dog\tEin Hund\nA cat\n")
    (tmp_path / "empty.tsv").write_text("")
    (tmp_path / "short.txt").write_text("A dog\nA cat\n")
    with pytest.raises(ValueError, match=words):
        evaluate(bundle(), data, root=root, **options)


def test_a_model_that_cannot_be_evaluated_raises():
    model = build("bert", vocab=9, width=8, heads=2, depth=1)
    with pytest.raises(
        ValueError, match="this BERT cannot be evaluated: expected a translator, a captioner, a language"
    ):
        evaluate(Bundle(model, None, model.config), "text.txt")


# The command line


def evaluated(*words):
    return call("evaluate", *words)


def test_the_command_prints_scores_and_writes_translations(root, run, tmp_path):
    folder, out = run(name="multi30k", source="en", target="de"), tmp_path / "new" / "hyp.txt"
    words = (folder, "multi30k", "split=test_2017_flickr", "beams=2", "protocol=words", "limit=5", "--data", root)
    shown = evaluated(*words, "--out", out, "--device", "cpu")
    assert (shown.exit_code, shown.stderr) == (0, "")
    found = json.loads(evaluated(*words, "--json", "--device", "cpu").stdout)
    assert (found["data"], found["sentences"]) == ("multi30k test_2017_flickr en-de", 3)
    assert [score["name"] for score in found["scores"]] == ["BLEU", "BLEU", "chrF2"]
    assert out.read_text() == "".join(f"{line}\n" for line in found["hypotheses"])
    for score in found["scores"]:
        assert f"{score['value']:.2f}" in shown.stdout
        assert score["signature"] in shown.stdout
    assert "3 " in shown.stdout


def test_the_command_takes_two_files_and_reports_a_wrong_option(run, tmp_path):
    folder = run(name="multi30k")
    (tmp_path / "a.en").write_text("\n".join(ENGLISH))
    (tmp_path / "a.de").write_text("\n".join(GERMAN))
    found = evaluated(folder, tmp_path / "a.en", tmp_path / "a.de", "beams=1", "limit=3", "--json")
    assert json.loads(found.stdout)["sentences"] == 4
    bad = evaluated(folder, tmp_path / "a.en", tmp_path / "a.de", "beans=1")
    assert (bad.exit_code, bad.stdout) == (1, "")
    assert "beans" in bad.stderr
    assert bad.stderr.count("\n") == 1
    assert "clearhead evaluate runs/en-de multi30k" in evaluated("--help").stdout


def test_the_command_warns_of_a_line_longer_than_the_context(run, tmp_path):
    path = pair_file(tmp_path / "long.tsv", ["A dog", "dog " * 50], ["Ein Hund", "Hund"])
    found = evaluated(run(name="multi30k"), path, "beams=1", "limit=3")
    assert found.exit_code == 0
    assert found.stderr.startswith("text 2 of 2 is longer than the 24 tokens")
    assert "too long to be read or translated" in found.stdout
