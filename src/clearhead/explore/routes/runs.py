"""Trainings: the runs in a folder, or the example that ships."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from .. import answers, requests
from ..explorer import Shared
from ..responses import PROBLEMS, json_response

router = APIRouter(prefix="/api/runs", responses=PROBLEMS)


@router.get("", response_model=list[answers.RunLine])
async def list_runs(explorer: Shared) -> Response:
    """The runs in the folder that the server was given; without one, the example that ships."""
    return json_response(await explorer.queue.run(explorer.runs.listed))


@router.get("/one", response_model=answers.RunShape)
async def show_run(
    run: requests.Id, explorer: Shared, since: Annotated[int, Query(ge=0, le=2**31)] = 0
) -> Response:
    """The metrics of a run, from record `since` on."""
    return json_response(await explorer.queue.run(lambda: explorer.runs.records(run, since)))
