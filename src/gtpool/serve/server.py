"""Running the application: bind a port, serve, shut down gracefully."""

import gc
import math
import signal
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

_BACKLOG = 2048  # connections that are not accepted yet


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to a port, so that a port in use fails before the model is loaded.

    Args:
        host: A name or address of this machine; "127.0.0.1" is reachable from this machine only.
        port: The port; 0 for any free one.
    """
    try:
        found = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)
        family, kind, proto, _, address = found[0]
        # asyncio sets TCP_NODELAY only if proto is TCP; otherwise responses are delayed by 40 ms.
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    return listener


def serve(
    app: FastAPI, listener: socket.socket, *, seconds: float, ready: Callable[[], None]
) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests in progress and return.

    Args:
        app: The application, from ``create_app``.
        listener: The socket, from ``bind``.
        seconds: Time limit of the requests in progress at shutdown.
        ready: Called once clients can connect and signals are handled.
    """
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="on",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=math.ceil(seconds) + 1,
        )
    )
    # uvicorn handles the signals while it runs and raises them again at the end; ignore these.
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, server.handle_exit) for number in signals}
    # Exclude the loaded modules and the model from garbage collection, which would pause for 0.2 s.
    gc.collect()
    gc.freeze()
    try:
        listener.listen(_BACKLOG)
        ready()
        server.run(sockets=[listener])
    finally:
        gc.unfreeze()
        for number, handler in before.items():
            signal.signal(number, handler)
