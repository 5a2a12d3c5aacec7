"""How much one request may ask for, and how a request is turned away."""

from dataclasses import asdict, dataclass

from starlette.exceptions import HTTPException


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


class Refusal(HTTPException):
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


def busy(what: str) -> Refusal:
    """Say that there is too much to do, and when to come again."""
    return Refusal(429, f"{what}; try again in a second", headers={"Retry-After": "1"})
