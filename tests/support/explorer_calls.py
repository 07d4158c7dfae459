"""Requests to the explorer whose answers are streams of JSON lines or arrays."""

import json

import numpy as np

from .api_shapes import schemas


def events(client, path, **body):
    """The lines of a stream, each of which the types of the explorer describe."""
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    found = [json.loads(line) for line in answer.text.splitlines()]
    for one in found:
        schemas.Event(**one)
    return found


def floats(answer):
    """The array of a binary response."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    shape = [int(n) for n in answer.headers["x-shape"].split(",")]
    return np.frombuffer(answer.content, "<f4").reshape(shape)


def numbers(client, path, **params):
    """An array that is requested about an inspection."""
    return floats(client.get(f"/api/looks/{path}", params=params))
