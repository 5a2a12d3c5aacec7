"""How much one request may ask for, which Host it may name, and how it is turned away."""

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
    """What the service takes on; what is more is refused before it costs much."""

    graphs: int = 512
    """Graphs in a request."""
    nodes: int = 20_000
    """Nodes in a request, and in a forward pass."""
    edges: int = 200_000
    """Edges in a request, both directions of an undirected one."""
    body_bytes: int = 4 << 20
    """Bytes of a request's body."""
    smiles_characters: int = 2_000
    """Characters of one SMILES: rdkit lets no other thread run while it reads one."""
    requests: int = 128
    """Requests in hand at once; one more is told to come again."""
    seconds: float = 30.0
    """From the head of a request to its answer."""
    batch_graphs: int = 128
    """Graphs of several requests that share a forward pass."""
    explain_nodes: int = 250
    """Nodes of a graph that is to be explained: as many as are drawn."""
    explain_edges: int = 5_000
    """Edges of such a graph, both directions of an undirected one."""
    explain_epochs: int = 50
    """Steps in which the importance of nodes is learned."""
    explain_requests: int = 4
    """Explanations in hand at once, of which one is worked on."""

    def __post_init__(self) -> None:
        """Refuse a limit that lets nothing through."""
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"the limit {name} must be above 0, got {value}")


class RequestError(HTTPException):
    """A request is turned away, in one line.

    Args:
        status: The HTTP status.
        detail: What is wrong, and what to do.
        where: The place in the request, such as ``graphs[0].edges[5]``.
        headers: More that the client is told.
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
    """Say that there is too much to do, and when to come again."""
    return RequestError(429, f"{what}; try again in a second", headers={"Retry-After": "1"})


@dataclass(frozen=True)
class Hosts:
    """The values of the ``Host`` header that are answered; ports do not matter."""

    names: frozenset[str]
    """Names and addresses, in small letters."""
    any_address: bool = False
    """Whether every IP address is answered as well."""

    def allow(self, header: str) -> bool:
        """Say whether a request with this header is answered.

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
    """Give the hosts of a service against DNS rebinding, or None where all are allowed.

    A page of a stranger can let its own name point to this machine, but then the browser sends that
    name. Requests that name an address cannot come from such a page.

    Args:
        host: Where the service was told to listen.
        address: The address that this is. "0.0.0.0" and "::" stand for all of this machine, so
            every address and the machine's own name are allowed.
        names: More names or addresses; "*" allows all.
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
    """Answers 400 to requests that name another host, and passes on all others.

    Args:
        app: The application.
        hosts: What may be named.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it. HTTP/1.0 without Host is passed on: no browser."""
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
    """Write a name or an address in one way, and say whether it is an address."""
    try:
        return str(ip_address(name)), True
    except ValueError:
        return name.lower().removesuffix("."), False
