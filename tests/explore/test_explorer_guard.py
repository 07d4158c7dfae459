"""Which requests the explorer refuses, and that text from users never becomes markup."""

import re
import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from serving import Uvicorn
from starlette.testclient import TestClient

from clearhead.explore import app, guard
from clearhead.explore.app import make_app
from clearhead.explore.guard import BODY, Guard
from clearhead.explore.server import request_protocol

HOME = "http://127.0.0.1:8000"
PAGE = Path(app.__file__).parent / "page"
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>&lt;b>"


@pytest.mark.parametrize(
    "host", ["evil.com", "127.0.0.1.evil.com", "evil.com:8000", "", "localhost.evil.com", "10.0.0.1", "[", "a@b"]
)
def test_other_host_names_are_refused(client, host):
    answer = client.get("/api/models", headers={"host": host})
    assert answer.status_code == 421
    assert "another name" in answer.json()["error"]
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000"])
def test_names_of_this_machine_are_allowed(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("headers", [
    {"origin": "http://evil.com"}, {"origin": "null"}, {"origin": "http://[bad"}, {"origin": "http://127.0.0.1:9999"},
    {"origin": "http://localhost:8000"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
])  # fmt: skip
def test_pages_of_other_sites_are_refused(client, headers):
    for answer in (client.get("/api/models", headers=headers), client.post("/api/build", json={}, headers=headers)):
        assert answer.status_code == 403
        assert "other sites" in answer.json()["error"]
        assert "access-control-allow-origin" not in answer.headers


def test_the_page_and_links_to_it_are_allowed(client):
    own = {"origin": HOME, "sec-fetch-site": "same-origin"}
    assert client.get("/api/runs", headers=own).status_code == 200
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200
    assert client.get("/api/runs", headers=link).status_code == 403


def test_every_response_has_the_security_headers(client):
    for path in ("/", "/page/app.js", "/api/runs", "/nothing", "/api/openapi.json"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_only_files_of_the_page_by_their_hash_are_kept_by_browsers(client):
    names = re.findall(r'(?:href|src)="(/page/[^"]+)"', client.get("/").text)
    assert len(names) > 5
    for name in names:
        assert re.match(r"/page/[0-9a-f]{16}/", name)
        answer = client.get(name)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert client.get(re.sub(r"[0-9a-f]{16}", "0" * 16, names[0])).status_code == 404


def test_bodies_are_limited_whether_or_not_their_length_is_declared(client):
    big = b'{"model": "en-de", "text": "' + b"a" * BODY + b'"}'
    answer = client.post("/api/translate", content=big, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "too large" in answer.json()["error"]

    def dripping():
        for start in range(0, len(big), 1 << 14):
            yield big[start : start + (1 << 14)]

    answer = client.post("/api/translate", content=dripping(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    for size in ("-1", "x", "9" * 40):
        answer = client.post("/api/translate", content=b"{}", headers={"content-length": size})
        assert answer.status_code == 413


def test_markup_in_any_field_is_answered_as_json(client, ask):
    for path, body in (
        ("/api/translate", {"model": MARKUP, "text": "x"}),
        ("/api/translate", {"model": "en-de", "text": "x", MARKUP: 1}),
        ("/api/translate", {"model": "en-de", "text": "x", "beams": MARKUP}),
        ("/api/write", {"model": "tiny", "text": "x", "off": {MARKUP: [1]}}),
        ("/api/build", {"x": MARKUP, "wq": [[1]], "wk": [[1]], "wv": [[1]]}),
        ("/api/build", {"x": [[1]], "wq": [[1]], "wk": [[1]], "wv": [[1]], "score": MARKUP}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code in (400, 404, 422)
        assert answer.headers["content-type"] == "application/json"
    for path in ("/api/looks/map", "/api/looks/heads", "/api/looks/lens", "/api/runs/one", "/api/positions"):
        names = ("look", "group", "layer", "by", "run", "kind", "at", "since")
        answer = client.get(path, params=dict.fromkeys(names, MARKUP))
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/json"
    found = ask("/api/translate", {"model": "en-de", "text": MARKUP, "beams": 1})[-1]
    assert "".join(found["translations"][0]["source"]).startswith("<img")
    assert "error" not in ask("/api/write", {"model": "tiny", "text": "<b>a</b>", "max_new": 1})[-1]


def test_the_page_never_parses_text_as_html():
    ways = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function|srcdoc|\son\w+=\""
    )
    for path in [*PAGE.rglob("*.js"), *PAGE.rglob("*.html")]:
        found = ways.findall(path.read_text(encoding="utf-8"))
        assert not found, f"{path.name}: {found}"


def test_the_page_has_no_addresses_of_other_servers():
    address = re.compile(r"https?://(?!www\.w3\.org/)")
    for path in PAGE.rglob("*"):
        if path.is_file():
            assert not address.search(path.read_text(encoding="utf-8")), path.name


def test_other_machines_need_a_token():
    with pytest.raises(ValueError, match="expected a token"):
        Guard(None, host="0.0.0.0")
    client = TestClient(make_app(host="0.0.0.0", token="secret-word", device="cpu"), base_url="http://10.0.0.5:8000")
    assert client.get("/").status_code == 401
    assert client.get("/api/runs").status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/api/runs?token=secret-word").status_code == 401  # in an address it opens the page only
    assert client.get("/api/runs", headers={"authorization": "Bearer secret-word"}).status_code == 200
    opened = client.get("/?token=secret-word", follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    assert "HttpOnly; SameSite=Strict" in opened.headers["set-cookie"]
    assert client.get("/api/runs", headers={"cookie": "clearhead=secret-word"}).status_code == 200
    assert client.get("/api/runs", headers={"cookie": "clearhead=other"}).status_code == 401
    others = {"cookie": 'a={"b":1}; c[]=d e; clearhead=secret-word'}  # of servers at other ports of the same machine
    assert client.get("/api/runs", headers=others).status_code == 200
    assert client.get("/api/runs", headers={"cookie": "a=b"}).status_code == 401
    assert client.get("/api/runs", headers={"cookie": "clearhead="}).status_code == 401
    rebound = {"authorization": "Bearer secret-word", "host": "rebound.evil.com"}
    assert client.get("/api/runs", headers=rebound).status_code == 421


def begun(address, text):
    """A connection that has sent the beginning of a request."""
    place = urlsplit(address)
    one = socket.create_connection((place.hostname, place.port), timeout=20)
    one.sendall(text.replace("HOST", place.netloc).encode())
    return one


def everything(one):
    """All that comes until the server closes the connection."""
    parts = []
    while part := one.recv(4096):
        parts.append(part)
    return b"".join(parts).decode()


BEGUN = "POST /api/build HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    with Uvicorn(make_app([], device="cpu")) as address, begun(address, BEGUN) as one:
        answer = everything(one)
    assert answer.startswith("HTTP/1.1 408")
    assert "the request did not arrive within 0.2 seconds" in answer


def test_slow_connections_do_not_lock_others_out(monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    options = {"limit_concurrency": 5, "http": request_protocol(0.2)}
    with Uvicorn(make_app([], device="cpu"), **options) as address, ExitStack() as stack:
        slow = [stack.enter_context(begun(address, text)) for text in (BEGUN, "", "GET / HTTP/1.1\r\nX: ", BEGUN)]
        for one in slow:
            everything(one)  # until the server has closed it
        with urllib.request.urlopen(f"{address}/api/runs", timeout=20) as answer:
            assert answer.status == 200


def test_a_connection_that_is_kept_may_send_further_requests():
    app = make_app([], device="cpu")
    with Uvicorn(app, http=request_protocol(0.5)) as address, httpx.Client(trust_env=False) as client:
        for _ in range(3):
            assert client.get(f"{address}/api/runs").status_code == 200
