"""What the page knows of models: views, or why there are none; examples."""

import json
from dataclasses import replace

import pytest
import torch
from starlette.testclient import TestClient

import clearhead as ch
from clearhead.explore import store
from clearhead.explore.app import make_app
from clearhead.explore.examples import SENTENCES, answer_length, examples_of, mask_name, outline, source_language
from clearhead.explore.store import ModelStore, RecipeFacts, views, why_no_view
from clearhead.layers.lora import add_adapters
from clearhead.tokens import Characters, Pair, Subwords, Symbols, Words
from clearhead.training import loop
from clearhead.weights import shipped
from support.api_shapes import schemas

SMALL = {"context": 16, "width": 8, "heads": 2, "depth": 1}
HOME = "http://127.0.0.1:8000"


def gpt(tokens, **options):
    return ch.Bundle(ch.build("gpt", vocab=len(tokens), **SMALL | options), tokens)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A client of runs: a model that reverses, one of vectors, and an old one that was saved without tokens."""
    root = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    data = {"symbols": 12, "rows": 4, "valid_rows": 4, "valid_batches": 1}
    model = {"name": "gpt", "width": 8, "heads": 2, "depth": 1}
    for name in ("reverse", "most", "recall"):
        recipe = {"steps": 1, "data": {"name": name, "length": 6, **data}, "model": model}
        ch.train(recipe, out=root / name, device="cpu", quiet=True)
    recipe = {"steps": 1, "data": {"name": "identity"}, "model": {"name": "mlp", "hidden": 8}}
    ch.train(recipe, out=root / "vectors", device="cpu", quiet=True)
    (root / "old").mkdir()
    (root / "old" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    ch.save(ch.Bundle(ch.build("gpt", vocab=5, **SMALL)), root / "old" / "model")
    with TestClient(make_app(runs=root, device="cpu"), base_url=HOME) as client:
        yield client


def line(client, model):
    return schemas.ModelLine(**client.get("/api/models/one", params={"model": model}).json())


def test_shipped_models_have_the_examples_of_their_cards(client):
    found = {one["id"]: schemas.ModelLine(**one) for one in client.get("/api/models").json()}
    for name, card in shipped().items():
        if not {"classify", "caption"} & set(found[name].kinds):  # those have example images
            assert found[name].examples == list(card.examples)
        assert len(found[name].examples) >= 4
        assert found[name].why is None
    assert "Je la mange." in found["fr-en"].examples
    assert found["tiny"].examples[0] == "Once upon a time"


def test_a_model_that_reverses_can_write_and_has_examples_in_its_own_symbols(trained):
    found = line(trained, "run-reverse")
    assert (found.kinds, found.why) == (["write"], None)
    assert found.examples == ["abcdef|", "bdface|"]  # rows of 6 symbols, and answers of 6
    assert found.max_new == 6
    asked = {"model": "run-reverse", "text": found.examples[0], "max_new": found.max_new}
    events = [json.loads(one) for one in trained.post("/api/write", json=asked).text.splitlines()]
    assert len([one for one in events if "token" in one]) == 6
    assert events[-1]["look"]["groups"][0]["rows"]["names"][:7] == list("abcdef|")
    assert (line(trained, "run-most").examples[0], line(trained, "run-most").max_new) == ("abaca|", 1)
    assert (line(trained, "run-recall").examples[0], line(trained, "run-recall").max_new) == ("ab*cd?", 1)


def test_a_folder_has_the_name_that_the_user_gave(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "minilm").symlink_to(tmp_path / "model")
    monkeypatch.chdir(tmp_path / "model")
    models = ModelStore([tmp_path / "minilm", "."]).models
    assert [(one.id, one.about) for one in models.values()][:2] == [
        ("minilm", "the folder minilm"), ("model", "the folder model"),
    ]  # fmt: skip


def test_a_model_that_fits_no_view_says_why(trained):
    vectors, old = line(trained, "run-vectors"), line(trained, "run-old")
    assert (vectors.kinds, vectors.why) == ([], "it reads vectors: no view shows them yet")
    assert (old.kinds, old.examples) == ([], [])
    assert "saved without tokens" in (old.why or "")
    assert trained.get("/api/models/one?model=run-none").status_code == 404


def test_a_run_that_is_trained_again_opens_with_its_new_model(tmp_path):
    def train(letters, depth):
        torch.manual_seed(depth)
        ch.save(gpt(Characters(letters), depth=depth), tmp_path / "run" / "model")

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    train("ab", 1)
    with TestClient(make_app(runs=tmp_path, device="cpu"), base_url=HOME) as client:
        before = line(client, "run-run")
        assert line(client, "run-run") == before
        train("abc", 2)
        after = line(client, "run-run")
        assert (before.examples, after.examples) == (["ab"], ["abc"])
        assert before.parameters < after.parameters
        assert before.version != after.version
        body = {"model": "run-run", "text": "cab", "max_new": 0}
        events = [json.loads(one) for one in client.post("/api/write", json=body).text.splitlines()]
        assert events[-1]["look"]["groups"][0]["layers"] == 2


@pytest.mark.filterwarnings("ignore::clearhead.errors.Notice")
def test_a_run_that_is_not_finished_opens_with_its_last_checkpoint(tmp_path, monkeypatch):
    data = {"name": "reverse", "length": 6, "symbols": 12, "rows": 4, "valid_rows": 4, "valid_batches": 1}
    model = {"name": "gpt", "width": 8, "heads": 2, "depth": 1}
    recipe = {"steps": 4, "data": data, "model": model, "run": {"save_every": 1, "log_every": 1}}

    def train_until(step):
        real = loop.Loop._step

        def stop_at(self, micro_batches):
            answer = real(self, micro_batches)
            self.stopping = self.step == step
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(loop.Loop, "_step", stop_at)
            ch.train(recipe, out=tmp_path / "run", device="cpu", quiet=True)

    train_until(1)
    with TestClient(make_app(runs=tmp_path, device="cpu"), base_url=HOME) as client:
        seen = []
        for step, note in ((2, "step 1 of 4"), (4, "step 2 of 4"), (None, None)):
            (listed,) = (schemas.TrainedLine(**one) for one in client.get("/api/models/trained").json())
            own = line(client, "run-run")
            assert (listed.id, listed.version, own.kinds) == ("run-run", own.version, ["write"])
            assert own.note is None if note is None else own.note.startswith(note)
            body = {"model": "run-run", "text": own.examples[0], "max_new": 1}
            assert client.post("/api/write", json=body).status_code == 200
            seen.append(own.version)
            if step is not None:
                train_until(step)
        assert len(set(seen)) == 3


def test_the_models_of_finished_runs_are_listed_without_loading_them(trained, monkeypatch):
    monkeypatch.setattr(store, "load", None)
    found = [schemas.TrainedLine(**one) for one in trained.get("/api/models/trained").json()]
    assert {one.id: (one.name, one.kinds, one.family) for one in found} == {
        f"run-{name}": (name, ["write"], "GPT") for name in ("reverse", "most", "recall")
    }  # neither that of vectors nor the one without tokens
    monkeypatch.undo()
    for one in found:
        own = line(trained, one.id)
        assert (own.trained, own.parameters, own.version) == (True, one.parameters, one.version)


def test_what_is_listed_of_a_model_is_what_its_views_find_when_it_is_loaded(tmp_path, captioners):
    words, sizes = Words(["a", "dog"]), {"vocab": 6, **SMALL}
    pair = Pair(words, words)
    for i, bundle in enumerate((
        gpt(words), gpt(words, positions="rotary"), ch.Bundle(ch.build("bert", vocab=7, **SMALL), words),
        ch.Bundle(ch.build("bert", **sizes, answer="class", classes=2), words),
        ch.Bundle(ch.build("transformer", **sizes), pair), ch.Bundle(ch.build("mlp", inputs=2, outputs=2)),
        ch.load("vit-cifar10", device="cpu"), ch.load(captioners["rnn"], device="cpu"),
    )):  # fmt: skip
        folder = ch.save(bundle, tmp_path / str(i))
        found = outline(folder)
        assert views(found) == views(bundle)
        assert (found.name, found.can, found.reads) == (bundle.name, bundle.can, bundle.reads)
        assert found.parameters == sum(p.numel() for p in bundle.model.parameters())


def test_adapters_that_a_run_kept_apart_are_listed(tmp_path):
    base = ch.save(gpt(Characters("ab")), tmp_path / "base")
    bundle = replace(ch.load(base, device="cpu"), base=str(base))
    add_adapters(bundle.model, rank=1)
    ch.save(bundle, tmp_path / "runs" / "x" / "model", layout="peft")
    (tmp_path / "runs" / "x" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert views(outline(tmp_path / "runs" / "x" / "model")) == views(bundle)


def test_a_run_keeps_its_name_and_one_that_is_gone_is_named(tmp_path):
    folder = tmp_path / "der große Lauf für Ö"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    ch.save(gpt(Characters("ab")), folder / "model")
    with TestClient(make_app(runs=tmp_path, device="cpu"), base_url=HOME) as client:
        (run,) = (schemas.RunLine(**one) for one in client.get("/api/runs").json())
        assert (run.id, run.name) == ("der-gro-e-Lauf-fur-O", folder.name)
        assert line(client, f"run-{run.id}").name == folder.name
        answer = client.get("/api/models/one", params={"model": "run-gone"})
        assert answer.status_code == 404
        assert answer.json()["error"] == (
            "there is no trained model of a run 'gone' here: it may have been moved or deleted, or have no checkpoint "
            "yet"
        )


def test_every_kind_of_model_has_a_view_or_a_reason():
    words = Words(["a", "dog"])
    bert = ch.Bundle(ch.build("bert", vocab=7, **SMALL), words)
    reader = ch.Bundle(ch.build("reader", vocab=6, width=8), words)
    assert views(gpt(words)) == ["write"]
    assert views(bert) == ["read"]
    assert views(ch.Bundle(bert.model)) == []
    assert "without tokens" in why_no_view(ch.Bundle(bert.model))
    assert "Reader neither continues" in why_no_view(reader)


def test_examples_can_be_read_by_the_model():
    assert examples_of(gpt(Characters("abcdxyz"))) == ["abcdxyz"]
    assert examples_of(gpt(Words(["The", "man"]))) == ["The man"]
    assert examples_of(gpt(Words(["ein", "Hund"]))) == ["ein Hund"]
    pair = Pair(Words(["ein", "Hund"]), Words(["a", "dog"]))
    translator = ch.Bundle(ch.build("transformer", vocab=6, target_vocab=6, **SMALL), pair)
    assert examples_of(translator) == ["ein Hund"]
    assert examples_of(ch.Bundle(ch.build("mlp", inputs=2, outputs=2))) == []
    assert mask_name(translator) is None


@pytest.mark.parametrize(
    ("settings", "names", "language"),
    [
        ({"source_lang": "fr", "target_lang": "en"}, [], "fr"),
        ({"src_lang": "eng_Latn"}, ["opus-mt-de-en"], "en"),
        ({}, ["opus-mt-fr-en"], "fr"),
        ({}, ["mine", "opus-mt-ru-en", "it-ru"], "it"),
        ({}, ["deu_eng.2"], "de"),
        ({}, ["ita", "2-1", "mine"], None),
        ({"source_lang": 3}, ["opus-mt-ru-en"], None),
    ],
)
def test_a_translator_has_examples_in_the_language_that_it_reads(tmp_path, settings, names, language):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokens = Subwords.of([text for texts in SENTENCES.values() for text in texts], size=300)
    model = ch.build("transformer", vocab=300, target_vocab=300, **SMALL)
    bundle = ch.Bundle(model, Pair(tokens, tokens), folder=tmp_path)
    assert source_language(bundle, names) == language
    assert examples_of(bundle, None, names) == list(SENTENCES.get(language, ()))


def test_the_recipe_of_a_run_says_what_its_model_translates(tmp_path):
    assert RecipeFacts.of(tmp_path) == RecipeFacts()
    recipe = {"pretrained": "/models/opus-mt-de-en", "data": {"name": "pairs", "source": "fr", "target": "en"}}
    ch.config.write(recipe, tmp_path / "recipe.toml")
    assert RecipeFacts.of(tmp_path) == RecipeFacts("pairs", ("opus-mt-de-en", "fr-en"))


@pytest.mark.parametrize(
    ("tokens", "task", "want", "length"),
    [
        (Symbols(3, "|"), None, ["abc|", "bac|"], 3),
        (Symbols(3, "|"), "most", ["abaca|", "cbbab|"], 1),
        (Symbols(2, "|"), "most", ["ab|", "ba|"], 1),
        (Symbols(40, "|"), "copy", ["0 1 2 3 4 5 6 7 |", "1 3 5 7 0 2 4 6 |"], 8),
        (Symbols(30, "*?"), "recall", ["0 1 2 3 * 4 5 6 7 ?", "1 3 5 7 * 0 2 4 6 ?"], 1),
    ],
)
def test_examples_of_symbols(tokens, task, want, length):
    bundle = gpt(tokens)
    assert examples_of(bundle, task) == want
    assert answer_length(bundle, task) == length
    for text in want:
        assert len(tokens.encode(text)) <= SMALL["context"]


def test_the_version_is_part_of_the_page(client):
    page = client.get("/").text
    assert "{version}" not in page
    assert f'<meta name="version" content="{ch.__version__}">' in page
