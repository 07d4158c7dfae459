"""Explorer: what the routes share: models, inspections, images, runs, and the queue of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from ..weights import Bundle
from . import answers
from .images import ImageStore
from .inspections.text import Inspection
from .queue import Progress, Queue
from .responses import error_message
from .runs import Runs
from .store import InspectionStore, ModelStore, StoredModel

T = TypeVar("T")
Done = Callable[[int, int], None]  # called with the amount of work done, and all of it


@dataclass(frozen=True, eq=False)
class Explorer:
    """The state that all routes share: models, inspections, images, runs and the queue."""

    models: ModelStore
    inspections: InspectionStore
    images: ImageStore
    queue: Queue
    runs: Runs
    device: str

    async def bundle(self, model: StoredModel) -> Bundle:
        """The loaded model; loading runs in a thread."""
        return await self.queue.run(lambda: model.bundle(self.device))

    def keep(self, inspection: Inspection, model: StoredModel) -> dict[str, Any]:
        """Keep an inspection of a model; returns its id and what can be requested about it."""
        # Measurements on a kept inspection run the model again, and need its lock.
        inspection.lock = model.lock
        return {"id": self.inspections.keep(inspection), **inspection.to_dict()}

    def describe(self, model: StoredModel) -> answers.ModelLine:
        """What the page shows of a model, or why it cannot be loaded."""
        try:
            return model.to_dict(self.device)
        # One broken folder must not empty the list of models.
        except (ValueError, OSError, RuntimeError) as problem:
            return {
                "id": model.id,
                "name": model.name or model.id,
                "about": model.about,
                "trained": model.training is not None,
                "kinds": [],
                "error": error_message(problem) or "it cannot be loaded",
            }

    async def measure(
        self,
        model: StoredModel,
        work: Callable[[Bundle, Done], T],
        event: Callable[[T], dict[str, Any]],
    ) -> AsyncIterator[dict[str, Any]]:
        """Run `work(bundle, done)` in a thread: yield lines with its progress, and then `event(result)`.

        The model is locked while it runs, and if the client disconnects, the next call of `done` stops it.
        """
        bundle = await self.bundle(model)
        steps = self.queue.with_progress(lambda done: work(bundle, done), model.lock)
        async for item in steps:
            yield {"progress": item} if isinstance(item, Progress) else event(item)


async def _explorer(request: Request) -> AsyncIterator[Explorer]:
    """The explorer, with a place in its queue for as long as the request lasts."""
    explorer: Explorer = request.app.state.explorer
    explorer.queue.enter()
    try:
        yield explorer
    finally:
        explorer.queue.leave()


Shared = Annotated[Explorer, Depends(_explorer)]
