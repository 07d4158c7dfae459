"""`clearhead explore` and `clearhead doctor`: what they print, and their errors."""

import json
import subprocess
import sys
import urllib.request
from importlib import import_module

import browser as web
import pytest

from clearhead.explore import server as serving
from clearhead.tasks import likelihood
from clearhead.weights import shipped
from support.command_line import call

doctors = import_module("clearhead.report.doctor")  # the file; clearhead.report.doctor is its function


def test_explore_prints_its_address_and_serves_from_any_folder(tiny, vectors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = web.Server(str(tiny), str(vectors))
    try:
        ask = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with ask.open(server.address) as answer:
            assert b"<title>clearhead</title>" in answer.read()
        with ask.open(f"{server.address}api/models") as answer:
            assert json.load(answer)[0]["id"] == "tiny"
        told = [server.process.stderr.readline().strip() for _ in range(2)]
        assert told[1] == "no view shows the model vectors: it reads vectors: no view shows them yet"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["no/such/folder"], "there is no such folder"),
        (["--runs", "no/such/folder"], "there is no such folder"),
    ],
)
def test_a_missing_folder_is_an_error_before_anything_is_served(words, sentence):
    found = call("explore", "--no-browser", *words)
    assert found.exit_code == 1
    assert sentence in found.stderr


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(serving, "_installed", lambda name: name != "uvicorn")
    found = call("explore", "--no-browser")
    assert found.exit_code == 1
    assert "the explorer needs uvicorn: pip install uvicorn" in found.stderr


def test_the_next_port_is_tried_if_one_is_taken():
    first = serving._listen("127.0.0.1", 0)
    taken = first.getsockname()[1]
    if taken > 65000:
        pytest.skip("no ports after this one")
    second = serving._listen("127.0.0.1", taken)
    assert second.getsockname()[1] > taken
    first.close()
    second.close()


def test_the_command_line_imports_neither_torch_nor_fastapi():
    code = "import sys; from clearhead import cli; print('torch' in sys.modules, 'fastapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"] * 2


def test_doctor_tests_every_shipped_model():
    found = call("doctor", "--json", "--device", "cpu")
    assert found.exit_code == 0, found.output
    health = json.loads(found.stdout)
    assert health["problems"] == []
    assert "attention" in health["facts"]["attention"]
    assert "Ein Hund rennt." in health["zoo"]["en-de"]
    assert "The man is standing" in health["zoo"]["everyday"]
    assert set(health["zoo"]) == set(shipped())
    assert "torch" in health["facts"]["packages"]


def test_doctor_reports_a_model_that_fails(monkeypatch):
    def broken(*_, **__):
        raise ValueError("its weights are torn")

    monkeypatch.setattr(doctors, "translate", broken)
    found = call("doctor", "--device", "cpu")
    assert found.exit_code == 1
    assert "en-de: ValueError: its weights are torn" in found.stderr


def test_doctor_reports_a_model_whose_log_probabilities_disagree(monkeypatch):
    monkeypatch.setattr(doctors, "likelihood", lambda bundle, text: likelihood(bundle, text.upper()))
    found = call("doctor", "--json", "--device", "cpu")
    assert found.exit_code == 1
    (problem,) = json.loads(found.stdout)["problems"]
    assert problem.startswith("everyday: ")
    assert "'The man is standing" in problem
