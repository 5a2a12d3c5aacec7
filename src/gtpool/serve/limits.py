"""Limits of requests, the check of their Host header, and the error that refuses them."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from socket import gethostname

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::\d*)?", re.ASCII)


@dataclass(frozen=True)
class Limits:
    """Limits of the service; larger requests are refused early."""

    graphs: int = 512
    """Graphs per request."""
    nodes: int = 20_000
    """Nodes per request and per forward pass."""
    edges: int = 200_000
    """Directed edges per request; an undirected edge counts twice."""
    body_bytes: int = 4 << 20
    """Bytes per request body."""
    smiles_characters: int = 2_000
    """Characters per SMILES: rdkit holds the GIL while it reads one."""
    requests: int = 128
    """Requests in progress; further ones get 429."""
    seconds: float = 30.0
    """Time limit of a request."""
    batch_graphs: int = 128
    """Graphs per forward pass shared by several requests."""
    explain_nodes: int = 250
    """Nodes of a graph to explain; larger graphs cannot be drawn."""
    explain_edges: int = 5_000
    """Directed edges of a graph to explain."""
    explain_epochs: int = 50
    """Training steps of the explainer."""
    explain_requests: int = 4
    """Explanations in progress, of which one runs."""

    def __post_init__(self) -> None:
        """Raise a ValueError for a limit that is not positive."""
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"the limit {name} must be above 0, got {value}")


class RequestError(HTTPException):
    """An error response to a request.

    Args:
        status: The HTTP status.
        detail: What is wrong, and what to do, in one line.
        where: Location in the request, such as ``graphs[0].edges[5]``.
        headers: Headers of the response.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        where: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, " ".join(detail.split()), headers)
        self.where = where


def too_busy(what: str) -> RequestError:
    """Return a 429 with Retry-After."""
    return RequestError(429, f"{what}; try again in a second", headers={"Retry-After": "1"})


@dataclass(frozen=True)
class Hosts:
    """Accepted values of the ``Host`` header; ports are ignored."""

    names: frozenset[str]
    """Lower-case names and addresses."""
    any_address: bool = False
    """Whether every IP address is accepted as well."""

    def allow(self, header: str) -> bool:
        """Whether a request with this header is accepted.

        Example:
            >>> hosts = Hosts(frozenset({"localhost", "::1"}))
            >>> [hosts.allow(header) for header in ("LOCALHOST:8000", "[::1]:8000", "evil.test")]
            [True, True, False]
        """
        found = _HOST.fullmatch(header)
        if found is None:
            return False
        name, is_address = _normal(found[1] or found[2])
        return name in self.names or (is_address and self.any_address)


def allowed_hosts(host: str, address: str, names: Sequence[str] = ()) -> Hosts | None:
    """Return the accepted hosts, as a defence against DNS rebinding; None accepts all.

    A malicious page can make its own name resolve to this machine, but the browser then sends that
    name as Host. A request with an IP address as Host cannot come from such a page.

    Args:
        host: The host that the service was told to listen on.
        address: Its IP address. For "0.0.0.0" and "::", which stand for all addresses of this
            machine, every address and the machine's own name are accepted.
        names: Further names or addresses; "*" accepts all.
    """
    if "*" in names:
        return None
    for name in names:
        if not re.fullmatch(r"[\w.-]+|\[?[0-9A-Fa-f:.]+\]?", name, re.ASCII):
            raise ValueError(f"--allowed-host takes a name or an address alone, got {name!r}")
    everywhere = ip_address(address).is_unspecified
    known = ["localhost", "127.0.0.1", "::1", host, address, *names]
    known += [gethostname()] if everywhere else []
    return Hosts(frozenset(_normal(name.strip("[]"))[0] for name in known), everywhere)


class HostCheck:
    """ASGI middleware that answers 400 to requests with another Host.

    Args:
        app: The application.
        hosts: The accepted hosts.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; one without Host (HTTP/1.0) does not come from a browser."""
        named = Headers(scope=scope).getlist("host") if scope["type"] == "http" else []
        if all(map(self.hosts.allow, named)):
            await self.app(scope, receive, send)
            return
        detail = (
            "the Host of this request is not one of this service; "
            "gtpool serve --allowed-host NAME adds one"
        )
        await JSONResponse({"detail": detail, "where": None}, 400)(scope, receive, send)


def _normal(name: str) -> tuple[str, bool]:
    """Return a name or address in normal form, and whether it is an address."""
    try:
        return str(ip_address(name)), True
    except ValueError:
        return name.lower().removesuffix("."), False
