"""The models that can be used."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from .. import answers, requests
from ..explorer import Shared
from ..responses import PROBLEMS, json_response

router = APIRouter(prefix="/api", responses=PROBLEMS)


@router.get("/models", response_model=list[answers.ModelLine])
async def list_models(explorer: Shared) -> Response:
    """The models that can be used."""
    models = list(explorer.models.models.values())
    lines = await explorer.queue.run(lambda: [explorer.describe(model) for model in models])
    return json_response(lines)


@router.get("/models/trained", response_model=list[answers.TrainedLine])
async def list_trained_models(explorer: Shared) -> Response:
    """The models of finished runs that a view can use, the most recent first; they are not loaded for it."""
    return json_response(await explorer.queue.run(explorer.models.trained))


@router.get("/models/one", response_model=answers.ModelLine)
async def show_model(model: requests.Id, explorer: Shared) -> Response:
    """One model; that of a finished run has the id run-ID."""
    known = explorer.models[model]
    return json_response(await explorer.queue.run(lambda: explorer.describe(known)))


@router.get("/share", response_model=answers.Share)
async def share(request: Request, explorer: Shared) -> Response:
    """What a link for other people needs before its fragment: the token, which whoever asks has sent already."""
    token: str | None = request.app.state.token
    return json_response({"query": f"?token={token}" if token else ""})
