"""Sessions: envs that clients hold, called one request at a time, each request once, and ended when nobody wants them.

The env of a session is called in the event loop, unless it may wait for something, or one of its kind once took long:
then in a thread of the session's own, which also makes it and closes it.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from time import monotonic
from typing import Any, Final, NamedTuple

from envgym.core.json_types import visible
from envgym.env import Env
from envgym.errors import EnvFailure, EnvgymError, InvalidInput
from envgym.runtime.error_log import log_error
from envgym.runtime.http.server import HttpReply
from envgym.serving.templates import EnvTemplate
from envgym.serving.wire import MAX_BODY_BYTES, Json, ServerBusy, SessionLost, encode, error_to_json

PendingReply = HttpReply | asyncio.Future[HttpReply]
_MAX_SWEEP_S: Final = 1.0
_log = logging.getLogger(__name__)


class SessionLimits(NamedTuple):
    """How many sessions, and how long."""

    sessions: int = 512
    lease_s: float = 120.0
    """A session ends when its client was silent for so long: it is gone."""
    idle_s: float = 3600.0
    """A session ends when none of its calls came for so long, though its client lives."""
    call_s: float = 600.0
    """Longest call of an env."""
    kept_s: float = 300.0
    """A session that is kept for whoever reads a pickle ends when none came for so long."""


class Session:
    """One env and its episode."""

    def __init__(self, session_id: str, template: EnvTemplate, opening: Json) -> None:
        """Begin with request 0, which is `opening`; the env comes with it."""
        self.id, self.template, self.opening = session_id, template, _digest(opening)
        self.number = 0
        self.env: Env[Any] | None = None
        self.reply: PendingReply | None = None
        """To the request of that number."""
        self.thread: ThreadPoolExecutor | None = None
        self.is_kept = self.is_ended = False
        """`is_kept`: for a client that may come later, as by a pickle."""
        self.last_call = self.last_seen = self.called_at = monotonic()

    def repeated(self, number: int) -> PendingReply | None:
        """Return the reply to a request that came before; None: it is the next. Raises: InvalidInput: it is neither."""
        if number == self.number and self.reply is not None:
            return self.reply
        if number != self.number + 1 or self.is_called:
            must, do = f"be {self.number + 1}, after the reply to {self.number}", "call a session one request at a time"
            raise InvalidInput.of("request number", must, number, where=f"session {self.id[:8]}", do=do)
        return None

    def submit(self, number: int, work: Callable[[], Json], *, of: "Session | None" = None) -> PendingReply:
        """Do `work` with the env, here or in the session's thread, and keep its reply as that to request `number`.

        `of` is the session whose env it calls, where it is not this one.
        """
        self.number, self.called_at = number, monotonic()
        thread = (of or self).own_thread()
        if thread is None:
            self.reply = attempt(work)
            self.template.note_seconds(monotonic() - self.called_at)
            return self.reply
        loop = asyncio.get_running_loop()
        self.reply = waiting = loop.create_future()
        done = loop.run_in_executor(thread, attempt, work)
        done.add_done_callback(lambda done: self._settle(waiting, done.result()))
        return waiting

    def own_thread(self) -> ThreadPoolExecutor | None:
        """Return the thread that calls the env; None: the event loop's."""
        if self.template.needs_thread and self.thread is None:
            self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"session-{self.id[:8]}")
        return self.thread

    def _settle(self, waiting: PendingReply, reply: HttpReply) -> None:
        """Answer who waits, unless that was done."""
        if isinstance(waiting, asyncio.Future) and not waiting.done():
            self.reply = reply
            waiting.set_result(reply)

    def give_up(self, error: EnvFailure) -> None:
        """Answer the call that is under way, whose result nobody gets."""
        if self.reply is not None:
            self._settle(self.reply, error_reply(error, HTTPStatus.GATEWAY_TIMEOUT))

    @property
    def is_called(self) -> bool:
        """Whether a call is under way, and somebody waits for it."""
        return isinstance(self.reply, asyncio.Future)

    def close(self) -> "asyncio.Future[None] | None":
        """Close the env after what it is doing; return what is done when that is, None: it is."""
        if self.thread is None:
            self._close_env()
            return None
        done = asyncio.get_running_loop().run_in_executor(self.thread, self._close_env)
        self.thread.shutdown(wait=False)
        return done

    def _close_env(self) -> None:
        if self.env is not None:
            try:
                self.env.close()
            except Exception as error:  # noqa: BLE001  # the session is over whatever an env's close raises
                log_error(error, f"close of {self.template.env_id} failed")


def json_reply(value: Json) -> HttpReply:
    """Return a reply in JSON. Raises: EnvFailure: it is longer than a client reads."""
    body = encode(value)
    if len(body) > MAX_BODY_BYTES:
        must, do = f"have at most {MAX_BODY_BYTES} bytes", "let the environment show less at once"
        raise EnvFailure.of("reply", must, f"{len(body)} bytes", where="environment server", do=do)
    return HttpReply(HTTPStatus.OK, body)


def error_reply(error: Exception, status: HTTPStatus) -> HttpReply:
    """Return a reply that says what is wrong, and to a client that may come again, when."""
    retry_after_s = getattr(error, "retry_after_s", None)
    headers = {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}
    return HttpReply(status, encode(error_to_json(error)), headers=headers)


def attempt(work: Callable[[], Json]) -> HttpReply:
    """The reply of a call; an error is a reply, too."""
    try:
        return json_reply(work())
    except InvalidInput as error:
        return error_reply(error, HTTPStatus.BAD_REQUEST)
    except EnvgymError as error:
        return error_reply(error, HTTPStatus.INTERNAL_SERVER_ERROR)
    except Exception as error:  # noqa: BLE001  # what an env raises is told to its client
        log_error(error, "a call of an env failed")
        return error_reply(error, HTTPStatus.INTERNAL_SERVER_ERROR)


def _digest(opening: Json) -> bytes:
    return hashlib.sha256(encode(opening)).digest()


class SessionTable:
    """All sessions of a server."""

    def __init__(self, limits: SessionLimits, *, on_end: Callable[[str], None]) -> None:
        """Begin without one; `on_end` is called with why a session ended: `closed` by its client, or otherwise."""
        self.limits, self._on_end = limits, on_end
        self._sessions: dict[str, Session] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        """Return the number of sessions, those that are being closed included."""
        return len(self._sessions) + len(self._closing)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def repeated(self, session_id: str, opening: Json) -> PendingReply | None:
        """Return the reply to a request that opened a session and is sent again; None: there is no such session.

        Raises: InvalidInput: another request opened the session, or the session was called since.
        """
        for session in self.having(session_id):
            if session.opening != _digest(opening) or session.number != 0:
                do = "choose 128 random bits"
                raise InvalidInput.of("session", "be a new id", f"{session_id[:8]}...", where="open", do=do)
            return session.reply
        return None

    def add(self, session_id: object, template: EnvTemplate, opening: Json) -> Session:
        """Begin a session. Raises: ServerBusy: all are taken. InvalidInput: the id is none, or taken."""
        if not isinstance(session_id, str) or not 16 <= len(session_id) <= 64 or session_id in self._sessions:
            do = "choose 128 random bits"
            raise InvalidInput.of("session", "be a new id of 16 to 64 letters", session_id, where="open", do=do)
        if len(self) >= self.limits.sessions:
            do = "wait, or raise --sessions of `envgym serve`"
            must = f"have one of its {self.limits.sessions} sessions free"
            raise ServerBusy.of("server", must, "none", where="open", do=do)
        session = self._sessions[session_id] = Session(session_id, template, opening)
        return session

    def get(self, session_id: object) -> Session:
        """Return a session, of which something is wanted now. Raises: SessionLost: there is none."""
        session = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if session is None:
            do = f"call a session at least every {self.limits.idle_s:g} s; after a restart begin the episode again"
            raise SessionLost.of("session", "be on this server", "none of that id", where="environment server", do=do)
        session.last_call = session.last_seen = monotonic()
        return session

    def having(self, session_id: object) -> tuple[Session, ...]:
        session = self._sessions.get(session_id) if isinstance(session_id, str) else None
        return () if session is None else (session,)

    def renew(self, session_ids: object) -> None:
        """Note that the clients of sessions live."""
        now = monotonic()
        for session_id in session_ids if isinstance(session_ids, list) else ():
            for session in self.having(session_id):
                session.last_seen = now

    def end(self, session_id: object, reason: str) -> "asyncio.Future[None] | None":
        """End a session, if there is one; return what is done when its env is closed, None: it is."""
        session = self._sessions.pop(session_id, None) if isinstance(session_id, str) else None
        if session is None:
            return None
        session.is_ended = True
        self._on_end(reason)
        if reason != "closed":
            _log.warning("%s", visible(f"session {session.id[:8]} of {session.template.env_id} ended: {reason}"))
        session.give_up(EnvFailure.of("session", "go on", reason, where=session.template.env_id, do="open another"))
        done = session.close()
        if done is not None:
            self._closing.add(done)
            done.add_done_callback(self._closing.discard)
        return done

    async def expire(self) -> None:
        """End what nobody wants any more, for ever."""
        limits = self.limits
        pause_s = min(
            _MAX_SWEEP_S, *(seconds / 4 for seconds in (limits.lease_s, limits.idle_s, limits.call_s, limits.kept_s))
        )
        while True:
            await asyncio.sleep(pause_s)
            now = monotonic()
            for session in self:
                if session.is_called:
                    if now - session.called_at > self.limits.call_s:
                        must, do = f"take at most {self.limits.call_s:g} s", "raise --call-seconds of `envgym serve`"
                        where = session.template.env_id
                        session.give_up(EnvFailure.of("call of the env", must, "more", where=where, do=do))
                        self.end(session.id, "stuck")
                elif session.is_kept and now - session.last_call > self.limits.kept_s:
                    self.end(session.id, "not taken")
                elif now - session.last_call > self.limits.idle_s:
                    self.end(session.id, "idle")
                elif now - session.last_seen > self.limits.lease_s and not session.is_kept:
                    self.end(session.id, "client gone")

    async def close(self, within_s: float) -> int:
        """End all sessions, and wait for their envs; return how many were not closed in time."""
        for session in self:
            self.end(session.id, "closed")
        if self._closing:
            with suppress(asyncio.CancelledError):
                await asyncio.wait(list(self._closing), timeout=within_s)
        return len(self._closing)
