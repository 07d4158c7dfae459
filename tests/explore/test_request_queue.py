"""Taking turns: the queue is bounded, work stops when its client leaves, and nobody gets another's answer."""

import asyncio
import json
import threading
import time

import anyio
import httpx
import numpy as np
import pytest
from serving import Uvicorn
from starlette.testclient import TestClient

import clearhead as ch
from clearhead.explore.inspections import OVERVIEWS, Left, Look, of_text
from clearhead.explore.request_queue import BusyError, Queue
from clearhead.explore.server import make_app
from clearhead.explore.store import Looks, UnknownError

HOME = "http://127.0.0.1:8000"


def test_who_comes_to_a_full_queue_is_told_so(tiny):
    app = make_app([tiny], device="cpu", active=1, waiting=1)
    queue = app.app.state.queue
    client = TestClient(app, base_url=HOME)
    queue.enter()
    queue.enter()
    answer = client.post("/api/translate", json={"model": "en-de", "text": "A dog."})
    assert answer.status_code == 503
    assert "2 requests are waiting already" in answer.json()["error"]
    assert answer.headers["retry-after"] == "1"
    queue.leave()
    assert client.get("/api/runs").status_code == 200
    assert queue.inside == 1  # a request gives its place back, a stream too
    with client.stream("POST", "/api/translate", json={"model": "en-de", "text": "A dog.", "beams": 1}) as answer:
        assert answer.status_code == 200
        answer.read()
    client.post("/api/translate", json={"model": "nope", "text": "A dog."})
    assert queue.inside == 1
    with pytest.raises(BusyError):
        [queue.enter() for _ in range(3)]


def test_only_so_many_are_worked_on_at_a_time():
    most = [0]

    async def all_of_them():
        queue, inside = Queue(active=3, waiting=50), [0]

        async def one():
            async with queue.turn():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                await anyio.sleep(0.005)
                inside[0] -= 1

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(one)

    anyio.run(all_of_them)
    assert most == [3]


def test_steps_of_two_requests_alternate_under_a_lock():
    told = []

    async def both():
        queue, lock = Queue(), anyio.Lock()

        def steps(name):
            for i in range(4):
                told.append(name)
                time.sleep(0.002)
                yield i

        async def one(name):
            async for _ in queue.each(steps(name), lock):
                pass

        async with anyio.create_task_group() as group:
            group.start_soon(one, "a")
            group.start_soon(one, "b")

    anyio.run(both)
    assert sorted(told) == ["a"] * 4 + ["b"] * 4
    assert told != sorted(told)


def test_long_work_tells_how_far_it_is_and_stops_when_nobody_waits():
    seen, over = [], threading.Event()

    def work(done):
        try:
            for i in range(200):
                time.sleep(0.02)
                done(i + 1, 200)
        finally:
            seen.append(i)
            over.set()
        return "all"

    async def leave():
        queue = Queue()
        told = queue.told(work, anyio.Lock())
        async for found in told:
            assert found[1] == 200
            break
        await told.aclose()
        await asyncio.to_thread(over.wait, 5)

    anyio.run(leave)
    assert seen[0] < 100


def test_a_reading_stops_between_blocks(tiny):
    bundle = ch.load(tiny, device="cpu")
    told = []

    def done(n, of):
        told.append((n, of))
        if n == 2:
            raise Left

    with pytest.raises(Left):
        of_text(bundle, list(range(20)), done=done)
    assert told == [(1, 3), (2, 3)]
    assert bundle.model.blocks[0].attn.tap is None  # and leaves no trace


def test_work_stops_when_the_client_leaves(tiny, monkeypatch):
    app = make_app([tiny], device="cpu")
    app.app.state.shelf["tiny"].bundle("cpu")
    steps = []
    model = app.app.state.shelf["tiny"].bundle("cpu").model
    slow = model.step

    def step(*given):
        steps.append(time.monotonic())
        time.sleep(0.02)
        return slow(*given)

    monkeypatch.setattr(model, "step", step)
    with Uvicorn(app) as address, httpx.Client(base_url=address, trust_env=False) as client:
        with client.stream("POST", "/api/write", json={"model": "tiny", "text": "The", "max_new": 400}) as answer:
            next(answer.iter_lines())
        left = time.monotonic()
        until = left + 5
        while app.app.state.queue.inside and time.monotonic() < until:
            time.sleep(0.02)
    assert app.app.state.queue.inside == 0
    assert len(steps) < 200
    assert steps[-1] - left < 1.0


def test_answers_are_not_crossed_between_users(tiny):
    """Twelve users at once, each with heads of its own switched off; all get what they would get alone."""
    app = make_app([tiny], device="cpu")
    asked = [
        {"model": "tiny", "text": f"The {name} sat", "max_new": 8, "off": {str(i % 3): [i % 4]}}
        for i, name in enumerate(["cat", "dog", "bird"] * 4)
    ]

    def plain(lines):
        found = [json.loads(line) for line in lines if line]
        return [one["token"] for one in found if "token" in one]

    with Uvicorn(app) as address:

        async def one(client, body, into, i):
            async with client.stream("POST", "/api/write", json=body) as answer:
                into[i] = plain([line async for line in answer.aiter_lines()])

        async def everyone():
            found = [None] * len(asked)
            client = httpx.AsyncClient(base_url=address, timeout=60, trust_env=False)
            async with client, anyio.create_task_group() as group:
                for i, body in enumerate(asked):
                    group.start_soon(one, client, body, found, i)
            return found

        together = anyio.run(everyone)
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            alone = [plain(client.post("/api/write", json=body).text.split("\n")) for body in asked]
    assert together == alone
    assert len({str(one) for one in alone}) == len(asked)


def test_overviews_that_are_asked_for_later_are_bounded_too(tiny):
    bundle = ch.load(tiny, device="cpu")
    group = of_text(bundle, list(range(60))).groups["self"]
    whole = (0, 60), (0, 60)
    first = group.tile(0, 0, *whole, 60)
    for cells in range(1, 60):
        group.tile(0, 0, *whole, cells)
        group.tile(0, 1, *whole, cells)
    assert len(group._overviews) == OVERVIEWS
    assert group.tile(0, 0, *whole, 60) == first
    looks = Looks(memory=3 * group.size())
    kept = [of_text(bundle, list(range(60))) for _ in range(3)]
    ids = [looks.keep(look) for look in kept]
    assert len(looks) == 3
    for look in kept[1:]:
        look.groups["self"]._overviews = {(0, 0, n): np.zeros((60, 60)) for n in range(2 * group.size() // 28_800)}
    assert [looks[ids[2]], looks[ids[1]]] == kept[:0:-1]  # what has grown since is counted when it is asked for
    assert len(looks) == 1


def test_looks_are_bounded_and_the_oldest_go(tiny):
    bundle = ch.load(tiny, device="cpu")
    looks = Looks(memory=200_000)
    look = of_text(bundle, list(range(40)))
    ids = [looks.keep(Look(look.groups, bundle, look.ids, look.states)) for _ in range(20)]
    assert look.size() * len(looks) <= 200_000 < look.size() * (len(looks) + 1)
    assert looks[ids[-1]].ids == look.ids
    with pytest.raises(UnknownError, match="no longer kept"):
        looks[ids[0]]
    with pytest.raises(ValueError, match="expected a shorter text"):
        Looks(memory=10).keep(look)
    assert len(set(ids)) == 20
    assert all(len(one) >= 16 for one in ids)
