"""`gtpool serve`: a saved model behind HTTP."""

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer

from gtpool.commands.options import Device
from gtpool.commands.predict import Model

_EXTRA = ("fastapi", "pydantic", "starlette", "uvicorn")
_OPEN = "gtpool: whoever reaches this address can use the model; --api-key-file asks for a key"


def _limit(text: str) -> Any:  # noqa: ANN401 - typer's own return type
    return typer.Option(min=1, help=text, rich_help_panel="Limits")


def serve(
    model: Model,
    *,
    host: Annotated[
        str, typer.Option(help="Where to listen; others need this told.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    batch: Annotated[
        bool, typer.Option(help="Whether requests that wait share a forward pass.")
    ] = True,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="Holds the key that clients must send. (env GTPOOL_API_KEY, or none)"),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Also answer requests for this name; may be repeated, * is any name."),
    ] = None,
    max_graphs: Annotated[int, _limit("In a request.")] = 512,
    max_nodes: Annotated[int, _limit("In a request.")] = 20_000,
    max_edges: Annotated[int, _limit("In a request, each direction counts.")] = 200_000,
    max_body_mb: Annotated[int, _limit("Of a request, MiB.")] = 4,
    max_requests: Annotated[int, _limit("In hand at once; one more is told to wait.")] = 128,
    time_limit: Annotated[int, _limit("For a request, seconds.")] = 30,
    device: Device = "auto",
) -> None:
    """Serve a model: predictions, explanations and a page, until Ctrl-C or SIGTERM."""
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
            f"to serve, {error.name} is needed: pip install '.[serve]' in a clone"
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
            typer.echo(f"gtpool: {schema_of(bundle).name} on http://{shown}:{at} (Ctrl-C stops it)")
            if key is None and not ip_address(address).is_loopback:
                typer.secho(_OPEN, err=True, fg="yellow")

        run(app, listener, seconds=limits.seconds, ready=ready)


def _read_key(path: Path | None) -> str | None:
    key = os.environ.get("GTPOOL_API_KEY") if path is None else path.read_text("utf-8").strip()
    if key is not None and not (key and key.isascii() and key.isprintable()):
        where = "GTPOOL_API_KEY" if path is None else path
        raise ValueError(f"{where} holds no API key: one line of plain characters is needed")
    return key
