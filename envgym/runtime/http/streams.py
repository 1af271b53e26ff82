"""Replies in parts, and the moment at which a client has taken what it was sent."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Final, NamedTuple

from envgym.runtime.http.heads import NO_HEADERS

EVENT_STREAM: Final = "text/event-stream"

OnSent = Callable[[bool], None]
"""Receives once whether a whole reply was sent. Sent means that the kernel has taken the last byte and that the client
had not closed the connection until then."""


class HttpStream(NamedTuple):
    """A reply that is sent in parts, by chunked transfer encoding."""

    status: HTTPStatus
    chunks: AsyncGenerator[bytes, None]
    """The parts. The next one is requested when the client has taken the last one. A client that leaves cancels the
    request for the next part, or closes the generator."""
    content_type: str = EVENT_STREAM
    headers: Mapping[str, str] = NO_HEADERS
    on_sent: OnSent | None = None


class FlushWatch:
    """Reports when the bytes written to a transport have been sent.

    `pause_writing` of the protocol must be left to the transport, and `report` called by `resume_writing` and
    `connection_lost`.
    """

    __slots__ = ("_on_sent", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._on_sent: OnSent | None = None

    def watch(self, on_sent: OnSent) -> None:
        """Report to `on_sent`, at once or later, whether what was written so far has been sent."""
        self._transport.set_write_buffer_limits(0)  # the protocol resumes only when nothing is left
        if self._transport.get_write_buffer_size():
            self._on_sent = on_sent
        else:
            on_sent(not self._transport.is_closing())

    def report(self, *, is_sent: bool) -> None:
        """End the watch, if there is one."""
        on_sent, self._on_sent = self._on_sent, None
        if on_sent is not None:
            on_sent(is_sent)

    async def flush(self) -> None:
        """Wait until what was written has been sent. Raises: CancelledError: the connection was closed."""
        sent: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.watch(lambda is_sent: None if sent.done() else sent.set_result(is_sent))
        if not await sent:
            raise asyncio.CancelledError

    async def write(self, chunks: AsyncGenerator[bytes, None]) -> None:
        """Write the chunks and the mark of their end. Raises: CancelledError, and whatever the generator raises."""
        async with aclosing(chunks):
            async for chunk in chunks:
                if chunk:  # an empty chunk would be the last one
                    self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await self.flush()
        self._transport.write(b"0\r\n\r\n")
        await self.flush()
