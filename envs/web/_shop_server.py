"""The store as web pages, served to a browser on this machine: one server for the process, one session per visitor.

The state of a visit lies here, as it does in a real store; the browser sends what is clicked and typed.
"""

import os
import secrets
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import jinja2

from envgym.envs.web._shop_clients import ShopView, TextShop
from envgym.envs.web._shop_pages import SEARCH, PageAction, ShopPage
from envgym.envs.web._shop_store import ShopVisit, search_products

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

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        Thread(target=self._http.serve_forever, name="envgym-shop", daemon=True).start()

    def begin(self, engine: TextShop, visit: ShopVisit) -> ShopSession:
        """Let a visitor in."""
        session = ShopSession(name=secrets.token_urlsafe(16), engine=engine, view=engine.enter(visit))
        self._sessions[session.name] = session
        return session

    def url(self, session: ShopSession) -> str:
        """Return where the session's page is."""
        return f"http://127.0.0.1:{self._http.server_port}/{session.name}"

    def end(self, session: ShopSession) -> None:
        """Forget a visitor."""
        self._sessions.pop(session.name, None)


class _ShopHandler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def session(self, name: str) -> ShopSession | None:
        """Return a session by its name."""
        raise AssertionError("the server's own handler knows")

    def do_GET(self) -> None:  # the standard library's name
        """Follow a link or search, and show the page."""
        url = urlsplit(self.path)
        session = self.session(url.path[1:])
        if session is None:
            self._send(HTTPStatus.NOT_FOUND, "There is no such visit.")
            return
        asked = parse_qs(url.query, keep_blank_values=True)
        act = PageAction.read(asked["act"][0]) if "act" in asked else None
        if "search" in asked:
            act = PageAction(SEARCH.verb, search_products(asked["search"][0]))
        if act is not None and act.verb in {*LINKS, SEARCH.verb}:
            session.act(act)
        self._send(HTTPStatus.OK, render_page(session.view.page, session.name))

    def do_POST(self) -> None:  # the standard library's name
        """Press a button, then send the browser back to the page."""
        session = self.session(self.path[1:])
        length = int(self.headers.get("Content-Length") or 0)
        if session is None or length > MAX_BODY:
            self.close_connection = True
            self._send(HTTPStatus.NOT_FOUND, "There is no such visit.")
            return
        act = PageAction.read(parse_qs(self.rfile.read(length).decode("utf-8", "replace")).get("act", [""])[0])
        if act is not None:
            session.act(act)
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, status: HTTPStatus, html: str) -> None:
        body = html.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


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
