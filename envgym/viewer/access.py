"""Who may ask the viewer.

On a loopback address a request must name this machine as its `Host`; on any other it must carry the token, which a
browser gives once, in the address, and then keeps in a cookie. Pages of other origins are refused everywhere. What has
an effect is a POST, which must carry the token of the page in a header: only a script of this server's own pages can
read it, and only such a script can set the header.
"""

from collections.abc import Mapping
from hmac import compare_digest
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from envgym.errors import sentence
from envgym.runtime.http.server import HttpReply
from envgym.viewer.replies import HEADERS

COOKIE: Final = "envgym_view"
PAGE_HEADER: Final = "x-envgym-page"
"""Header of a POST with the token that `/api/page` gives to the app's own pages."""
_REFRESH: Final = b'<!doctype html><meta http-equiv="refresh" content="0; url=/">\n'
Refusal = tuple[HTTPStatus, str]


def with_authorization(target: str, headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers of a request, with the token that its address or its cookie carries as `Authorization`."""
    token = query_token(target.partition("?")[2])
    if not token:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        token = cookie.value if cookie else ""
    return {"authorization": f"Bearer {token}", **headers} if token else headers


def query_token(query: str) -> str:
    """Return the token in the query of an address; empty if there is none."""
    return parse_qs(query).get("token", [""])[0]


def login_reply(token: str, headers: Mapping[str, str]) -> HttpReply:
    """Return the reply that gives a browser its cookie, and takes the token out of its address bar and history."""
    cookie = f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"
    fields = {**HEADERS, "Set-Cookie": cookie}
    if headers.get("sec-fetch-site") == "cross-site":  # whose redirect would not carry the cookie
        return HttpReply(HTTPStatus.OK, _REFRESH, "text/html", fields)
    return HttpReply(HTTPStatus.SEE_OTHER, b"", "text/html", {**fields, "Location": "/"})


def token_refusal(headers: Mapping[str, str]) -> Refusal:
    """Return why a request is refused that does not have the token; `headers`: as `with_authorization` returns them."""
    got, do = "another" if "authorization" in headers else "none", "open the address that `envgym view` printed"
    where = "/?token=TOKEN, or the header Authorization: Bearer TOKEN"
    return HTTPStatus.UNAUTHORIZED, sentence("token", "be the server's", got, where=where, do=do)


def foreign_refusal(path: str, headers: Mapping[str, str]) -> Refusal | None:
    """Return why a request is refused that a browser sends for a page of another site; None: it is not."""
    site = headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin") or path == "/":
        return None
    do = "open the page at its address"
    return HTTPStatus.FORBIDDEN, sentence("Sec-Fetch-Site", "be same-origin", site, where=path, do=do)


def page_refusal(path: str, headers: Mapping[str, str], page_token: str) -> Refusal | None:
    """Return why a request that has an effect is refused; None: a page of the app has sent it."""
    token = headers.get(PAGE_HEADER, "")
    if compare_digest(token.encode(), page_token.encode()):
        return None
    got, do = "another token" if token else "no token", "reload the page"
    return HTTPStatus.FORBIDDEN, sentence(PAGE_HEADER, "be the page's token", got, where=path, do=do)
