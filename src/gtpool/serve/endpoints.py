"""What each path of the service does, and how it ends: an answer, or one line that says why not."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from time import monotonic
from typing import Any

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gtpool.serve.body import receive
from gtpool.serve.limits import Refusal
from gtpool.serve.metrics import CONTENT_TYPE
from gtpool.serve.service import Service

_Work = Callable[[bytes, float], Awaitable[bytes]]


class Endpoints:
    """Handlers that FastAPI calls; their docstrings are in its description of the paths.

    Args:
        service: What does the work.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def predict(self, request: Request) -> Response:
        """Each graph gets an answer or a reason why there is none, in the order of the request.

        A graph that is alone in its request and cannot be predicted is a 422.
        """
        return await self._held(request, self._service.predict)

    async def explain(self, request: Request) -> Response:
        """Which nodes count, whom each pooling step kept, and pictures of both."""
        return await self._held(request, self._service.explain)

    async def model(self) -> Response:
        """What the model predicts from what, how good it was, and how much may be asked."""
        return _json(200, self._service.about())

    async def metrics(self) -> Response:
        """Requests, times, the queue and the sizes of forward passes, as Prometheus reads them."""
        return Response(self._service.metrics.text(), media_type=CONTENT_TYPE)

    async def health(self) -> Response:
        """Whether the model still answers."""
        if self._service.stuck():
            raise Refusal(503, "a forward pass does not end; start the service again")
        return _json(200, {"status": "ok"})

    async def _held(self, request: Request, work: _Work) -> Response:
        """Take a request in, have it worked on, and answer, all within its time."""
        limits = self._service.limits
        deadline = monotonic() + limits.seconds
        end = asyncio.get_running_loop().time() + limits.seconds
        with self._service.admit():
            try:
                async with asyncio.timeout_at(end):
                    body = await receive(request, limits.body_bytes)
            except TimeoutError:
                raise Refusal(408, f"the body took longer than {limits.seconds:g} s") from None
            try:
                async with asyncio.timeout_at(end):
                    return Response(await work(body, deadline), media_type="application/json")
            except TimeoutError:
                raise Refusal(
                    503, f"no answer within {limits.seconds:g} s; ask for less at once, or later"
                ) from None


async def refused(_request: Request, error: HTTPException) -> Response:
    """Answer a request that is turned away, by us or because there is no such path."""
    where = error.where if isinstance(error, Refusal) else None
    return _json(error.status_code, {"detail": error.detail, "where": where}, error.headers)


async def gone(_request: Request, _error: Exception) -> Response:
    """Answer a client that went away before it had said all: for the count alone."""
    return _json(400, {"detail": "the body is not complete", "where": None})


async def broken(_request: Request, _error: Exception) -> Response:
    """Tell no more of an error of ours than that there was one: the log has the rest."""
    return _json(500, {"detail": "an error of the service; its log says more", "where": None})


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    HTTPException: refused,
    ClientDisconnect: gone,
    Exception: broken,
}
"""Who answers which exception."""


def _json(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:  # noqa: ANN401
    return Response(json.dumps(value), status, headers, "application/json")
