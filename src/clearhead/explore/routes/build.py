"""Build: small computations with every number shown."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ...errors import InputError
from .. import answers, requests
from ..build import ALIBI_HEADS, by_hand, memory_decay, position_vectors
from ..explorer import Shared
from ..responses import PROBLEMS, json_response

router = APIRouter(prefix="/api", responses=PROBLEMS)


@router.post("/build", response_model=answers.ByHandShape)
async def attention_by_hand(body: requests.Build, explorer: Shared) -> Response:
    """Self-attention with given matrices: every number of it."""
    result = await explorer.queue.run(lambda: by_hand(**body.model_dump()))
    return json_response(result.to_dict())


@router.get("/positions", response_model=answers.PositionsShape)
async def positions(
    explorer: Shared,
    kind: Annotated[str, Query(pattern="^(sinusoid|rotary|alibi|sincos2d)$")] = "sinusoid",
    width: Annotated[int, Query(ge=2, le=256)] = 64,
    length: Annotated[int, Query(ge=2, le=256)] = 64,
    base: Annotated[float, Query(gt=1.0, le=1e6)] = 10_000.0,
    head: Annotated[int, Query(ge=0, lt=ALIBI_HEADS)] = 0,
) -> Response:
    """Position vectors, and the similarity of any two."""
    # Patches on a square: their number grows with the square of the length.
    if kind == "sincos2d" and length > 16:
        raise InputError(f"an image with {length} patches per side: expected at most 16")
    result = await explorer.queue.run(
        lambda: position_vectors(kind, width=width, length=length, base=base, head=head)
    )
    return json_response(result)


@router.get("/memory", response_model=answers.MemoryShape)
async def memory(
    explorer: Shared,
    gamma: Annotated[float, Query(gt=0.0, le=1.0)] = 0.9,
    length: Annotated[int, Query(ge=1, le=128)] = 24,
    sharpness: Annotated[float, Query(ge=0.0, le=100.0)] = 6.0,
) -> Response:
    """The weight of each input in a recurrent memory with decay, after each later input."""
    result = await explorer.queue.run(
        lambda: memory_decay(gamma, length=length, sharpness=sharpness)
    )
    return json_response(result)
