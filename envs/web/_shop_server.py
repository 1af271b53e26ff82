"""The store as web pages, served to a browser on this machine: one server for the process, one session per visitor.

The state of a visit lies here, as it does in a real store; the browser sends what is clicked and typed.
"""

import os
import secrets
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import jinja2

from envgym.envs.web._shop_clients import ShopView, TextShop
from envgym.envs.web._shop_pages import SEARCH, PageAction, ShopPage
from envgym.envs.web._shop_store import ShopVisit, search_products
from envgym.errors import InvalidInput
from envgym.http_server import BoundedHandler, BoundedServer

LINKS = frozenset({"open", "show_page", "back", "view_cart"})
"""Acts that change nothing but the page: links; the others are buttons of a form that is posted."""
MAX_BODY = 10_000
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
        sessions = self._sessions

        class Handler(_ShopHandler):
            """Knows the sessions of this server."""

            def session(self, name: str) -> ShopSession | None:
                return sessions.get(name)

        self._http = BoundedServer("127.0.0.1", 0, Handler)
        Thread(target=self._http.serve_forever, name="envgym-shop", daemon=True).start()

    def begin(self, engine: TextShop, visit: ShopVisit) -> ShopSession:
        """Let a visitor in."""
        session = ShopSession(name=secrets.token_urlsafe(16), engine=engine, view=engine.enter(visit))
        self._sessions[session.name] = session
        return session

    def url(self, session: ShopSession) -> str:
        """Return where the session's page is."""
        return f"{self._http.url}/{session.name}"

    def end(self, session: ShopSession) -> None:
        """Forget a visitor."""
        self._sessions.pop(session.name, None)


class _ShopHandler(BoundedHandler):
    """Answers one connection."""

    def session(self, name: str) -> ShopSession | None:
        """Return a session by its name."""
        raise AssertionError("the server's own handler knows")

    def get(self) -> None:
        """Follow a link or search, and show the page."""
        url = urlsplit(self.path)
        session = self.session(url.path[1:])
        if session is None:
            self._show(HTTPStatus.NOT_FOUND, "There is no such visit.")
            return
        asked = parse_qs(url.query, keep_blank_values=True)
        act = PageAction.read(asked["act"][0]) if "act" in asked else None
        if "search" in asked:
            act = PageAction(SEARCH.verb, search_products(asked["search"][0]))
        if act is not None and act.verb in {*LINKS, SEARCH.verb}:
            session.act(act)
        self._show(HTTPStatus.OK, render_page(session.view.page, session.name))

    def post(self) -> None:
        """Press a button, then send the browser back to the page."""
        session = self.session(self.path[1:])
        try:
            body = self.body(MAX_BODY)
        except InvalidInput:
            session = None
        if session is None:
            self._show(HTTPStatus.NOT_FOUND, "There is no such visit.")
            return
        act = PageAction.read(parse_qs(body.decode("utf-8", "replace")).get("act", [""])[0])
        if act is not None:
            session.act(act)
        self.send(HTTPStatus.SEE_OTHER, "text/plain", b"", {"Location": self.path})

    def _show(self, status: HTTPStatus, html: str) -> None:
        self.send(status, "text/html; charset=utf-8", html.encode(), {"Cache-Control": "no-store"})


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
