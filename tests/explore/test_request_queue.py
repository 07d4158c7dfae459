"""The queue is bounded, work stops when its client disconnects, and no user gets the answer of another."""

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
from clearhead.explore.app import make_app
from clearhead.explore.inspections import Inspection, inspect_text
from clearhead.explore.inspections.attention_groups import OVERVIEWS
from clearhead.explore.queue import BusyError, Cancelled, Queue
from clearhead.explore.store import InspectionStore, UnknownError

HOME = "http://127.0.0.1:8000"


def test_a_full_queue_refuses_requests(tiny):
    app = make_app([tiny], device="cpu", active=1, waiting=1)
    queue = app.app.state.explorer.queue
    client = TestClient(app, base_url=HOME)
    queue.enter()
    queue.enter()
    answer = client.post("/api/translate", json={"model": "en-de", "text": "A dog."})
    assert answer.status_code == 503
    assert "2 requests are waiting already" in answer.json()["error"]
    assert answer.headers["retry-after"] == "1"
    queue.leave()
    assert client.get("/api/runs").status_code == 200
    assert queue.inside == 1  # a request leaves the queue, and so does a stream
    with client.stream("POST", "/api/translate", json={"model": "en-de", "text": "A dog.", "beams": 1}) as answer:
        assert answer.status_code == 200
        answer.read()
    client.post("/api/translate", json={"model": "nope", "text": "A dog."})
    assert queue.inside == 1
    with pytest.raises(BusyError):
        [queue.enter() for _ in range(3)]


def test_at_most_active_requests_run_at_a_time():
    most = [0]

    async def all_of_them():
        queue, inside = Queue(active=3, waiting=50), [0]

        async def one():
            async with queue.slot():
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
    order = []

    async def both():
        queue, lock = Queue(), anyio.Lock()

        def steps(name):
            for i in range(4):
                order.append(name)
                time.sleep(0.002)
                yield i

        async def one(name):
            async for _ in queue.each(steps(name), lock):
                pass

        async with anyio.create_task_group() as group:
            group.start_soon(one, "a")
            group.start_soon(one, "b")

    anyio.run(both)
    assert sorted(order) == ["a"] * 4 + ["b"] * 4
    assert order != sorted(order)


def test_progress_never_goes_back():
    steps = []

    def work(done):
        for i in range(5):
            done(i + 1, 9)
        # long enough for two further readings, in which there is nothing new
        time.sleep(0.35)
        return "all"

    async def read():
        async for step in Queue().with_progress(work, anyio.Lock()):
            steps.append(step)

    anyio.run(read)
    assert [step if step == "all" else step[0] for step in steps] == [5, "all"]


def test_long_work_reports_progress_and_stops_when_nobody_reads_it():
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
        progress = queue.with_progress(work, anyio.Lock())
        async for n, of in progress:
            assert 1 <= n <= of == 200
            break
        await progress.aclose()
        await asyncio.to_thread(over.wait, 5)

    anyio.run(leave)
    assert seen[0] < 100


def test_an_inspection_can_be_stopped_between_blocks(tiny):
    bundle = ch.load(tiny, device="cpu")
    progress = []

    def done(n, of):
        progress.append((n, of))
        if n == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        inspect_text(bundle, list(range(20)), done=done)
    assert progress == [(1, 3), (2, 3)]
    assert bundle.model.blocks[0].attn.tap is None  # the model is no longer watched


def test_work_stops_when_the_client_disconnects(tiny):
    app = make_app([tiny], device="cpu")
    explorer = app.app.state.explorer
    steps = []

    def slow(*_):
        steps.append(time.monotonic())
        time.sleep(0.02)

    explorer.models["tiny"].bundle("cpu").model.head.register_forward_hook(slow)  # runs once per token
    with Uvicorn(app) as address, httpx.Client(base_url=address, trust_env=False) as client:
        with client.stream("POST", "/api/write", json={"model": "tiny", "text": "The", "max_new": 400}) as answer:
            next(answer.iter_lines())
        left = time.monotonic()
        until = left + 5
        while explorer.queue.inside and time.monotonic() < until:
            time.sleep(0.02)
    assert explorer.queue.inside == 0
    assert 0 < len(steps) < 200
    assert steps[-1] - left < 1.0


def test_users_at_once_get_the_answers_that_each_would_get_alone(tiny):
    """Twelve users at once, each with other heads silenced."""
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


def test_overviews_are_bounded_and_count_as_memory(tiny):
    bundle = ch.load(tiny, device="cpu")
    group = inspect_text(bundle, list(range(60))).groups["self"]
    whole = (0, 60), (0, 60)
    first = group.tile(0, 0, *whole, 60)
    for cells in range(1, 60):
        group.tile(0, 0, *whole, cells)
        group.tile(0, 1, *whole, cells)
    assert len(group._overviews) == OVERVIEWS
    assert (group.tile(0, 0, *whole, 60).weights == first.weights).all()
    store = InspectionStore(memory=3 * group.size())
    kept = [inspect_text(bundle, list(range(60))) for _ in range(3)]
    ids = [store.keep(inspection) for inspection in kept]
    assert len(store) == 3
    for inspection in kept[1:]:
        overviews = {(0, 0, n): np.zeros((60, 60)) for n in range(2 * group.size() // 28_800)}
        inspection.groups["self"]._overviews = overviews
    assert [store[ids[2]], store[ids[1]]] == kept[:0:-1]  # the size is measured again whenever one is used
    assert len(store) == 1


def test_inspections_are_bounded_and_the_oldest_are_dropped(tiny):
    bundle = ch.load(tiny, device="cpu")
    store = InspectionStore(memory=200_000)
    one = inspect_text(bundle, list(range(40)))
    ids = [store.keep(Inspection(one.groups, bundle, one.ids, one.states)) for _ in range(20)]
    assert one.size() * len(store) <= 200_000 < one.size() * (len(store) + 1)
    assert store[ids[-1]].ids == one.ids
    with pytest.raises(UnknownError, match="no longer kept"):
        store[ids[0]]
    with pytest.raises(ValueError, match="expected a shorter text"):
        InspectionStore(memory=10).keep(one)
    assert len(set(ids)) == 20
    assert all(len(id_) >= 16 for id_ in ids)
