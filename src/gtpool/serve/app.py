"""The ASGI application that serves a model."""

import asyncio
import ctypes
import hmac
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.responses import HTMLResponse
from fastapi.security import APIKeyHeader

from gtpool import __version__
from gtpool.model.bundle import Bundle
from gtpool.serve import schemas
from gtpool.serve.endpoints import (
    HANDLERS,
    Endpoints,
    describe,
    docs_page,
    request_body,
    responses_of,
)
from gtpool.serve.limits import HostCheck, Hosts, Limits, RequestError
from gtpool.serve.metrics import CONTENT_TYPE, MetricsMiddleware
from gtpool.serve.service import Service
from gtpool.study.run_one import choose_device

_PAGE = Path(__file__).parent / "page.html"
_KEY = APIKeyHeader(name="X-API-Key", auto_error=False)
_TRIM_SECONDS = 5
_TURNED_AWAY = (408, 413, 415, 422, 429, 503)


def create_app(
    bundle: Bundle,
    limits: Limits | None = None,
    *,
    batch: bool = True,
    api_key: str | None = None,
    hosts: Hosts | None = None,
    device: str = "auto",
) -> FastAPI:
    """Return the application; its threads stop when the server shuts down.

    Args:
        bundle: A trained model, from ``load_bundle``.
        limits: Limits on requests; by default those of ``Limits()``.
        batch: Whether waiting requests share a forward pass.
        api_key: Key that clients must send as ``X-API-Key``; None for no key.
        hosts: Accepted ``Host`` headers, from ``allowed_hosts``; None accepts all.
        device: "auto", "cpu" or "cuda".
    """
    service = Service(bundle, limits or Limits(), batch=batch, device=choose_device(device))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        trimming = asyncio.create_task(_trim_memory())
        yield
        trimming.cancel()
        service.close()

    app = FastAPI(
        title="gtpool",
        version=__version__,
        description="Predictions of a graph model, and their explanations.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # a redirect would echo the client's Host header
        lifespan=lifespan,
        exception_handlers=HANDLERS,
    )
    _add_paths(app, service, api_key)
    described = describe(app)
    pages = {"/": _PAGE.read_text(encoding="utf-8"), "/docs": docs_page(described)}
    _add_pages(app, pages, json.dumps(described))
    paths = {*described["paths"], *pages, "/openapi.json"}
    if hosts is not None:
        app.add_middleware(HostCheck, hosts=hosts)
    app.add_middleware(MetricsMiddleware, metrics=service.metrics, paths=paths)
    return app


async def _trim_memory() -> None:
    """Return memory that large requests have freed to the system, if the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_TRIM_SECONDS)
        await asyncio.to_thread(trim, 0)  # takes 0.3 ms if there is nothing to return


def _add_paths(app: FastAPI, service: Service, api_key: str | None) -> None:
    does, keyed = Endpoints(service), APIRouter()
    example = service.reader.example()
    if service.reader.takes == "smiles":
        many = request_body(schemas.PredictSmiles, {"smiles": [example]})
        single = request_body(schemas.ExplainSmiles, {"smiles": example})
    else:
        many = request_body(schemas.PredictGraphs, {"graphs": [example]})
        single = request_body(schemas.ExplainGraph, {"graph": example})
    keyed.add_api_route(
        "/predict",
        does.predict,
        methods=["POST"],
        summary="Predict one graph or several",
        openapi_extra=many,
        responses=responses_of(schemas.Predictions, *_TURNED_AWAY),
    )
    keyed.add_api_route(
        "/explain",
        does.explain,
        methods=["POST"],
        summary="Explain the prediction of one graph",
        openapi_extra=single,
        responses=responses_of(schemas.Explained, *_TURNED_AWAY),
    )
    keyed.add_api_route(
        "/model", does.model, summary="The served model", responses=responses_of(schemas.Model)
    )
    keyed.add_api_route(
        "/metrics",
        does.metrics,
        summary="Metrics for Prometheus",
        responses={200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}},
        response_class=Response,
    )
    guards = [] if api_key is None else [Depends(_key_check(api_key))]
    app.include_router(
        keyed, dependencies=guards, responses=responses_of(None, 401) if guards else {}
    )
    app.add_api_route(
        "/healthz",
        does.health,
        summary="Health check",
        responses=responses_of(schemas.Health, 503),
    )


def _key_check(api_key: str) -> Callable[[str | None], Awaitable[None]]:
    async def check(given: Annotated[str | None, Depends(_KEY)]) -> None:
        if not hmac.compare_digest((given or "").encode(), api_key.encode()):
            raise RequestError(401, "send the API key of this service in the header X-API-Key")

    return check


def _add_pages(app: FastAPI, pages: dict[str, str], described: str) -> None:
    """Add the pages for browsers; they need no key, since they show no model data."""
    unframed = {"Content-Security-Policy": "frame-ancestors 'none'"}

    def showing(text: str) -> Callable[[], Awaitable[Response]]:
        async def show() -> Response:
            return HTMLResponse(text, headers=unframed)

        return show

    async def describing() -> Response:
        return Response(described, media_type="application/json")

    for path, text in pages.items():
        app.add_api_route(path, showing(text), include_in_schema=False)
    app.add_api_route("/openapi.json", describing, include_in_schema=False)
