"""A process that serves: it listens, answers, and stops when it is told to, with nothing lost."""

import gc
import math
import signal
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

_WAITING = 2048  # connections that nobody has accepted yet


def bind(host: str, port: int) -> socket.socket:
    """Take a port, so that one in use is known before a model is loaded.

    Args:
        host: An address of this machine or its name; "127.0.0.1" is seen from here alone.
        port: 0 takes any that is free.
    """
    try:
        found = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)
        family, kind, proto, _, address = found[0]
        # The loop sends at once only where it is told that this is TCP; answers would wait 40 ms.
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
    """Answer until SIGTERM or SIGINT; then take no more, finish what is in flight, and return.

    Args:
        app: What ``create_app`` gave.
        listener: What ``bind`` gave.
        seconds: How long what is in flight may take.
        ready: Called when clients can connect and signals are obeyed.
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
            backlog=_WAITING,
            timeout_graceful_shutdown=math.ceil(seconds) + 1,
        )
    )
    # uvicorn takes the signals over while it runs, and raises them again at the end: by then they
    # have been obeyed.
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, server.handle_exit) for number in signals}
    # What is here now stays; to look through it for garbage would hold up all answers by 0.2 s.
    gc.collect()
    gc.freeze()
    try:
        listener.listen(_WAITING)
        ready()
        server.run(sockets=[listener])
    finally:
        gc.unfreeze()
        for number, handler in before.items():
            signal.signal(number, handler)
