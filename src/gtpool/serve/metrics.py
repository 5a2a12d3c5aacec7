"""Prometheus metrics of the service, and the middleware that records them."""

from collections.abc import Callable, Container
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Counters, gauges and histograms of one service, in a registry of its own.

    Args:
        requests: Returns the number of requests in progress.
        graphs: Returns the number of graphs waiting for a forward pass.
    """

    def __init__(self, requests: Callable[[], int], graphs: Callable[[], int]) -> None:
        self._registry = to = CollectorRegistry()
        self._requests = Counter(
            "gtpool_requests", "Requests answered.", ("path", "status"), registry=to
        )
        self._seconds = Histogram(
            "gtpool_request_seconds",
            "Time from request to response.",
            ("path",),
            registry=to,
            buckets=_SECONDS,
        )
        in_hand = Gauge("gtpool_requests_in_hand", "Requests in progress.", registry=to)
        queue = Gauge("gtpool_queue_graphs", "Graphs waiting for a forward pass.", registry=to)
        in_hand.set_function(requests)
        queue.set_function(graphs)
        self._batches = Histogram(
            "gtpool_batch_graphs", "Graphs in a forward pass.", registry=to, buckets=_GRAPHS
        )
        self._predicted = Counter("gtpool_graphs_predicted", "Graphs predicted.", registry=to)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Record a request that has been answered."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, graphs: int) -> None:
        """Record a forward pass."""
        self._batches.observe(graphs)
        self._predicted.inc(graphs)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class MetricsMiddleware:
    """ASGI middleware: counts and times responses, and adds ``nosniff`` and ``no-store``.

    Args:
        app: The application.
        metrics: Where requests are recorded.
        paths: Paths with a label of their own; all others share the label "other".
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Container[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        status, start = 500, perf_counter()

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            await self.app(scope, receive, send_noting_status)
        finally:
            self.metrics.request(path, status, perf_counter() - start)
