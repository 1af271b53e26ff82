"""The web server below the protocols that need ASGI: uvicorn, without what the command or the protocol does itself."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from envgym.runtime.http.access import unusable_address


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises: InvalidInput: the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise unusable_address(host, port, error) from error


def uvicorn_server(app: Callable[..., Any], started: asyncio.Event, **options: Any) -> Any:  # uvicorn.Server
    """Return a server of an ASGI application that sets `started` when it answers; `options` are those of uvicorn.

    It writes no log of requests, and leaves the signals of the process to the command.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        interface="asgi3",
        lifespan="off",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        **options,
    )
    return Server(config)
