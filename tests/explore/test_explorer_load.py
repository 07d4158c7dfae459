"""A hundred users at once: no answer is mixed up, memory does not grow, and a full queue answers 503."""

import os
import time

import anyio
import browser as web
import httpx
import pytest

SECONDS = float(os.environ.get("CLEARHEAD_LOAD_SECONDS", "60"))
USERS = 100


def memory(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_a_hundred_users(tiny):
    server = web.Server(str(tiny))
    words = ["dog", "cat", "man", "woman", "child", "boy", "girl", "horse", "bird", "car"]
    wrong, done, busy = [], [0], [0]
    first = {}  # the first answer to each request

    async def user(client, number, until):
        n = 0
        while time.monotonic() < until:
            word = words[(number + n) % 10]
            if number % 2:
                path, body = "/api/translate", {"model": "en-de", "text": f"A {word} runs.", "beams": 2}
            else:
                path, body = "/api/write", {"model": "tiny", "text": f"The {word}", "max_new": 5, "off": {"0": [n % 4]}}
            n += 1
            answer = await client.post(path, json=body)
            if answer.status_code == 503:
                assert "waiting already" in answer.json()["error"]
                busy[0] += 1
                await anyio.sleep(0.3)
                continue
            assert answer.status_code == 200, answer.text
            lines = [one for one in answer.text.splitlines() if one.startswith(('{"token"', '{"beams"'))]
            key = path + str(sorted(body.items()))
            if first.setdefault(key, lines) != lines:
                wrong.append(key)
            done[0] += 1

    async def everyone(seconds):
        until = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=USERS)
        client = httpx.AsyncClient(base_url=server.address, timeout=120, limits=limits, trust_env=False)
        async with client, anyio.create_task_group() as group:
            for number in range(USERS):
                group.start_soon(user, client, number, until)

    try:
        anyio.run(everyone, SECONDS / 4)
        before = memory(server.process.pid)
        anyio.run(everyone, SECONDS)
        after = memory(server.process.pid)
    finally:
        server.stop()
    print(f"{done[0]} answers, {busy[0]} refused; {before:.0f} MB, then {after:.0f} MB")
    assert wrong == []
    assert done[0] > USERS
    assert after < before + 300
