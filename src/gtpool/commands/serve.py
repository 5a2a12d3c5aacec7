"""`gtpool serve`: serve a saved model over HTTP."""

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer

from gtpool.commands.options import Device
from gtpool.commands.predict import Model

_EXTRA = ("fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn")
_OPEN = "gtpool: the service is open to anyone who reaches this address; set --api-key-file"


def _limit(text: str) -> Any:  # noqa: ANN401 - typer's own return type
    return typer.Option(min=1, help=text, rich_help_panel="Limits")


def serve(
    model: Model,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")
    ] = 8000,
    batch: Annotated[
        bool, typer.Option(help="Combine waiting requests into one forward pass.")
    ] = True,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the key that clients must send. (default: GTPOOL_API_KEY, if set)"
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Additional host name to answer to; repeatable, * for any."),
    ] = None,
    max_graphs: Annotated[int, _limit("Graphs per request.")] = 512,
    max_nodes: Annotated[int, _limit("Nodes per request.")] = 20_000,
    max_edges: Annotated[int, _limit("Directed edges per request.")] = 200_000,
    max_body_mb: Annotated[int, _limit("Size of a request in MiB.")] = 4,
    max_requests: Annotated[
        int, _limit("Concurrent requests; more are rejected with Retry-After.")
    ] = 128,
    time_limit: Annotated[int, _limit("Seconds per request.")] = 30,
    device: Device = "auto",
) -> None:
    """Serve predictions and explanations of a model, with a web page, over HTTP."""
    key = _read_key(api_key_file)
    try:
        from gtpool.serve.app import create_app
        from gtpool.serve.limits import Limits, allowed_hosts
        from gtpool.serve.server import bind
        from gtpool.serve.server import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise ValueError(
            f"`gtpool serve` requires {error.name}: run pip install '.[serve]' in a clone"
        ) from error
    from gtpool.model.bundle import load_bundle
    from gtpool.predict import schema_of

    limits = Limits(
        graphs=max_graphs,
        nodes=max_nodes,
        edges=max_edges,
        body_bytes=max_body_mb << 20,
        requests=max_requests,
        seconds=time_limit,
    )
    with bind(host, port) as listener:
        address, at, *_ = listener.getsockname()
        hosts = allowed_hosts(host, address, allowed_host or ())
        bundle = load_bundle(model)
        app = create_app(bundle, limits, batch=batch, api_key=key, hosts=hosts, device=device)

        def ready() -> None:
            shown = f"[{address}]" if ":" in address else address
            typer.echo(
                f"gtpool: {schema_of(bundle).name} on http://{shown}:{at} (stop with Ctrl-C)"
            )
            if key is None and not ip_address(address).is_loopback:
                typer.secho(_OPEN, err=True, fg="yellow")

        run(app, listener, seconds=limits.seconds, ready=ready)


def _read_key(path: Path | None) -> str | None:
    key = os.environ.get("GTPOOL_API_KEY") if path is None else path.read_text("utf-8").strip()
    if key is not None and not (key and key.isascii() and key.isprintable()):
        where = "GTPOOL_API_KEY" if path is None else path
        raise ValueError(f"{where} must hold an API key: one line of printable ASCII characters")
    return key
