"""Random requests: every response is as the OpenAPI description says, and none is a server error."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error, response_schema_conformance, status_code_conformance
from serving import Uvicorn
from starlette.testclient import TestClient

from clearhead.explore.app import make_app

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]
DESCRIBED = TestClient(make_app(device="cpu"), base_url="http://127.0.0.1:8000").get("/api/openapi.json").json()


def without_tuples(described):
    """The description with arrays of any of their types for tuples.

    schemathesis 4.32 writes the prefixItems of a tuple as a list of items, as JSON Schema did before 2020-12, and then
    refuses its own list.
    """
    if isinstance(described, list):
        return [without_tuples(one) for one in described]
    if not isinstance(described, dict):
        return described
    made = {key: without_tuples(value) for key, value in described.items()}
    if "prefixItems" in made:
        made["items"] = {"anyOf": made.pop("prefixItems")}
    return made


SCHEMA = schemathesis.openapi.from_dict(without_tuples(DESCRIBED))
SCHEMA.config.phases.update(phases=["fuzzing"])
SCHEMA = SCHEMA if THOROUGH else SCHEMA.exclude(path="/api/build")  # random matrices take long


@pytest.fixture(scope="module")
def address(tiny, runs):
    with Uvicorn(make_app([tiny], runs=runs, device="cpu")) as found:
        yield found


@SCHEMA.parametrize()
@settings(
    max_examples=60 if THOROUGH else 6, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_random_requests_get_described_responses(case, address):
    body = case.body if isinstance(case.body, dict) else {}
    if isinstance(body.get("model"), str):  # an unknown id would test little
        body["model"] = "en-de" if case.path.endswith(("translate", "align")) else "tiny"
    if isinstance(body.get("max_new"), int):
        body["max_new"] = min(body["max_new"], 4)
    case.call_and_validate(base_url=address, checks=CHECKS, timeout=120)
