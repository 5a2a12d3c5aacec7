"""Counts and times in the text format that Prometheus reads."""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import accumulate
from threading import Lock
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Counter:
    r"""A number that only grows, for each set of labels.

    Example:
        >>> made = Counter("made_total", "Things made.", ("kind",))
        >>> made.add("big")
        >>> print(*made.lines(), sep="\n")
        # HELP made_total Things made.
        # TYPE made_total counter
        made_total{kind="big"} 1
    """

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.help_text, self.labels = name, help_text, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}
        self._lock = Lock()

    def add(self, *values: str, by: float = 1) -> None:
        """Count once more, or by so many, for these values of the labels."""
        with self._lock:
            self._values[values] = self._values.get(values, 0) + by

    def lines(self) -> Iterator[str]:
        """Write it down."""
        yield from _head(self.name, self.help_text, "counter")
        with self._lock:
            values = sorted(self._values.items())
        yield from (f"{self.name}{_braced(self.labels, key)} {value}" for key, value in values)


class Histogram:
    """How often a quantity fell below each of some bounds, for each set of labels."""

    def __init__(
        self, name: str, help_text: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        self.name, self.help_text, self.bounds, self.labels = name, help_text, bounds, labels
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        self._lock = Lock()

    def observe(self, quantity: float, *values: str) -> None:
        """Take in one more, for these values of the labels."""
        with self._lock:
            counts = self._counts.setdefault(values, [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, quantity)] += 1
            self._sums[values] = self._sums.get(values, 0) + quantity

    def lines(self) -> Iterator[str]:
        """Write it down: each count is of all that is not above its bound."""
        yield from _head(self.name, self.help_text, "histogram")
        with self._lock:
            found = [(key, [*counts], self._sums[key]) for key, counts in self._counts.items()]
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        for key, counts, total in sorted(found):
            for bound, count in zip(bounds, accumulate(counts), strict=True):
                place = _braced((*self.labels, "le"), (*key, bound))
                yield f"{self.name}_bucket{place} {count}"
            place = _braced(self.labels, key)
            yield f"{self.name}_sum{place} {total}"
            yield f"{self.name}_count{place} {sum(counts)}"


class Gauge:
    """A number that is asked for when it is wanted."""

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self.name, self.help_text, self.read = name, help_text, read

    def lines(self) -> Iterator[str]:
        """Write it down."""
        yield from _head(self.name, self.help_text, "gauge")
        yield f"{self.name} {self.read()}"


class Metrics:
    """All that the service counts.

    Args:
        requests: Tells how many requests are in hand.
        graphs: Tells how many graphs wait for a forward pass.
    """

    def __init__(self, requests: Callable[[], int], graphs: Callable[[], int]) -> None:
        self.answers = Counter("gtpool_requests_total", "Requests answered.", ("path", "status"))
        self.seconds = Histogram(
            "gtpool_request_seconds", "From a request to its answer.", _SECONDS, ("path",)
        )
        self.batches = Histogram("gtpool_batch_graphs", "Graphs in a forward pass.", _GRAPHS)
        self.predicted = Counter("gtpool_graphs_predicted_total", "Graphs predicted.")
        self.in_hand = Gauge("gtpool_requests_in_hand", "Requests read or waiting.", requests)
        self.waiting = Gauge("gtpool_queue_graphs", "Graphs that wait for a pass.", graphs)

    def text(self) -> str:
        """Write all of it down."""
        parts = (
            self.answers,
            self.seconds,
            self.in_hand,
            self.waiting,
            self.batches,
            self.predicted,
        )
        return "".join(f"{line}\n" for part in parts for line in part.lines())


class MetricsMiddleware:
    """Counts and times what an ASGI application answers, and marks it as not to be guessed at.

    Args:
        app: The application.
        metrics: Where to count.
        paths: Those that are counted by their name; all others are one.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Container[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        status, start = 500, perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            self.metrics.answers.add(path, str(status))
            self.metrics.seconds.observe(perf_counter() - start, path)


def _head(name: str, help_text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _braced(labels: Sequence[str], values: Sequence[str]) -> str:
    """Write labels; their values are ours (paths that exist, statuses), so nothing is escaped."""
    pairs = [f'{label}="{value}"' for label, value in zip(labels, values, strict=True)]
    return f"{{{','.join(pairs)}}}" if pairs else ""
