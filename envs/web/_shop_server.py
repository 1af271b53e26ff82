"""The store as web pages, served to a browser on this machine: one server for the process, one session per visitor.

The state of a visit lies here, as it does in a real store; the browser sends what is clicked and typed.
"""

import os
import secrets
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

import jinja2

from envgym.envs.web._shop_clients import ShopView, TextShop
from envgym.envs.web._shop_pages import SEARCH, PageAction, ShopPage
from envgym.envs.web._shop_store import ShopVisit, search_products
from envgym.runtime.event_loop import LoopThread
from envgym.runtime.http.server import HttpLimits, HttpReply, HttpRequest, HttpServer
from envgym.runtime.http.threads import ThreadedHandler

LINKS = frozenset({"open", "show_page", "back", "view_cart"})
"""Acts that change nothing but the page: links; the others are buttons of a form that is posted."""
LIMITS: Final = HttpLimits(connections=128, body_bytes=10_000, idle_s=60.0)
_THREADS = 8
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(slots=True, kw_only=True)
class ShopSession:
    """One visitor."""

    name: str
    engine: TextShop
    view: ShopView

    def act(self, act: PageAction) -> None:
        """Do it where the visitor's page offers it; a stale link changes nothing."""
        offered = self.view.page.find(act)
        if offered is not None:
            self.view = self.engine.act(self.view, offered)


class ShopServer:
    """Serves every session of the process on a port of its own choice."""

    def __init__(self) -> None:
        """Start to serve, in threads that end with the process."""
        self._sessions: dict[str, ShopSession] = {}
        server = HttpServer(ThreadedHandler(self._reply, threads=_THREADS, wait_s=LIMITS.reply_s), limits=LIMITS)
        self._url = LoopThread("envgym-shop").run(server.listen("127.0.0.1", 0))

    def begin(self, engine: TextShop, visit: ShopVisit) -> ShopSession:
        session = ShopSession(name=secrets.token_urlsafe(16), engine=engine, view=engine.enter(visit))
        self._sessions[session.name] = session
        return session

    def url(self, session: ShopSession) -> str:
        return f"{self._url}/{session.name}"

    def end(self, session: ShopSession) -> None:
        self._sessions.pop(session.name, None)

    def _reply(self, request: HttpRequest) -> HttpReply:
        session = self._sessions.get(request.path[1:])
        if session is None:
            return _page(HTTPStatus.NOT_FOUND, "There is no such visit.")
        return _follow(session, request.query) if request.method == "GET" else _press(session, request)


def _follow(session: ShopSession, query: str) -> HttpReply:
    fields = parse_qs(query, keep_blank_values=True)
    act = PageAction.read(fields["act"][0]) if "act" in fields else None
    if "search" in fields:
        act = PageAction(SEARCH.verb, search_products(fields["search"][0]))
    if act is not None and act.verb in {*LINKS, SEARCH.verb}:
        session.act(act)
    return _page(HTTPStatus.OK, render_page(session.view.page, session.name))


def _press(session: ShopSession, request: HttpRequest) -> HttpReply:
    """Press a button, and send the browser back to the page."""
    act = PageAction.read(parse_qs(request.body.decode("utf-8", "replace")).get("act", [""])[0])
    if act is not None:
        session.act(act)
    return HttpReply(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": request.path})


def _page(status: HTTPStatus, html: str) -> HttpReply:
    return HttpReply(status, html.encode(), "text/html; charset=utf-8", {"Cache-Control": "no-store"})


def render_page(page: ShopPage, session: str) -> str:
    """Return the document of a page; every text is escaped, and it loads nothing."""
    return _template().render(page=page, session=session, links=LINKS)


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    return jinja2.Environment(loader=loader, autoescape=True, auto_reload=False).get_template("shop.html.jinja")


@cache
def server() -> ShopServer:
    """Return the server of this process."""
    return ShopServer()


os.register_at_fork(after_in_child=server.cache_clear)
