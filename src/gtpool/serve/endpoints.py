"""Handlers of the paths, error handlers, and the OpenAPI description."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gtpool.report.page import load_template
from gtpool.serve import schemas
from gtpool.serve.body import receive
from gtpool.serve.limits import RequestError
from gtpool.serve.metrics import CONTENT_TYPE
from gtpool.serve.service import Service

_Work = Callable[[bytes, float], Awaitable[bytes]]


class Endpoints:
    """Handlers for FastAPI; their docstrings appear in the OpenAPI description.

    Args:
        service: Does the work.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def predict(self, request: Request) -> Response:
        """Returns a prediction, or a reason why there is none, for each graph in order.

        A single graph that cannot be predicted is a 422.
        """
        return await self._held(request, self._service.predict)

    async def explain(self, request: Request) -> Response:
        """Returns node importance, the nodes kept by each pooling step, and drawings of both."""
        return await self._held(request, self._service.explain)

    async def model(self) -> Response:
        """Returns inputs and targets of the model, its metrics, and the limits of a request."""
        return _json(200, self._service.about())

    async def metrics(self) -> Response:
        """Returns requests, times, queue and batch sizes in Prometheus's text format."""
        return Response(self._service.metrics.text(), media_type=CONTENT_TYPE)

    async def health(self) -> Response:
        """Returns 503 if a forward pass hangs."""
        if self._service.stuck():
            raise RequestError(503, "a forward pass hangs; restart the service")
        return _json(200, {"status": "ok"})

    async def _held(self, request: Request, work: _Work) -> Response:
        """Receive, process and answer a request within its time limit."""
        limits = self._service.limits
        deadline = monotonic() + limits.seconds
        end = asyncio.get_running_loop().time() + limits.seconds
        with self._service.admit():
            try:
                async with asyncio.timeout_at(end):
                    body = await receive(request, limits.body_bytes)
            except TimeoutError:
                raise RequestError(408, f"the body took longer than {limits.seconds:g} s") from None
            try:
                async with asyncio.timeout_at(end):
                    return Response(await work(body, deadline), media_type="application/json")
            except TimeoutError:
                raise RequestError(
                    503, f"no answer within {limits.seconds:g} s; send less at once, or try later"
                ) from None


async def refused(_request: Request, error: HTTPException) -> Response:
    """Answer a request that was refused, or whose path does not exist."""
    where = error.where if isinstance(error, RequestError) else None
    return _json(error.status_code, {"detail": error.detail, "where": where}, error.headers)


async def gone(_request: Request, _error: Exception) -> Response:
    """Answer a client that disconnected before its body was complete, for the metrics."""
    return _json(400, {"detail": "the body is not complete", "where": None})


async def broken(_request: Request, _error: Exception) -> Response:
    """Answer after an internal error, without details; these are in the log."""
    return _json(500, {"detail": "internal error; see the log of the service", "where": None})


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    HTTPException: refused,
    ClientDisconnect: gone,
    Exception: broken,
}
"""Exception handlers of the application."""


def _json(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:  # noqa: ANN401
    return Response(json.dumps(value), status, headers, "application/json")


_Json = dict[str, Any]

_REFERENCE = "#/components/schemas/{model}"
_BODIES = (
    schemas.PredictSmiles,
    schemas.PredictGraphs,
    schemas.ExplainSmiles,
    schemas.ExplainGraph,
)
_PROBLEMS = {
    401: "The API key is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    422: "The body is invalid, exceeds a limit, or holds a single graph that cannot be predicted.",
    429: "Too many requests; retry after the seconds of Retry-After.",
    503: "No answer within the time limit.",
}


def request_body(form: type[BaseModel], example: _Json) -> _Json:
    """Return the OpenAPI description of a request body, which FastAPI does not parse."""
    schema = {"$ref": _REFERENCE.format(model=form.__name__)}
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def responses_of(form: type[BaseModel] | None, *problems: int) -> dict[int | str, _Json]:
    """Return the OpenAPI description of the responses: success and errors."""
    told: dict[int | str, _Json] = {
        status: {"model": schemas.Problem, "description": _PROBLEMS[status]} for status in problems
    }
    return told if form is None else {200: {"model": form, "description": "The answer."}, **told}


def describe(app: FastAPI) -> _Json:
    """Return the OpenAPI description, with the schemas of request bodies."""
    described = app.openapi()
    text = json.dumps(described)
    forms = [form for form in _BODIES if _REFERENCE.format(model=form.__name__) in text]
    _, found = models_json_schema([(form, "validation") for form in forms], ref_template=_REFERENCE)
    described["components"]["schemas"] |= found["$defs"]
    return described


def docs_page(described: _Json) -> str:
    """Return the OpenAPI description as an HTML page."""
    page = load_template(Path(__file__).with_name("docs.html.j2"))
    operations = [
        {"path": path, "method": method.upper(), **operation}
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    return page.render(
        info=described["info"],
        operations=operations,
        schemas=described["components"]["schemas"],
        kind=_kind,
    )


def _kind(schema: _Json) -> str:
    """Return the type of a schema in words."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_kind(part) for part in schema[key])
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(part) for part in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of ({_kind(schema['items'])})" if "items" in schema else "list"
    return str(schema.get("type", "anything"))
