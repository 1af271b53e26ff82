"""The way into the store through real Chromium: pages are read out of the document, acts are mouse and keyboard."""

import json
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from envgym.envs.web._browser import Tab, check_browser
from envgym.envs.web._shop_clients import ShopView, TextShop
from envgym.envs.web._shop_pages import SEARCH, LineCell, PageAction, PageLine, ShopPage
from envgym.envs.web._shop_server import ShopSession, server
from envgym.envs.web._shop_store import ShopVisit
from envgym.errors import EnvFailure

if TYPE_CHECKING:
    from playwright.async_api import Page as Document
    from playwright.async_api import Response

_READ = """() => [
    [...document.querySelectorAll("[data-line]")].map(line => [
        line.querySelector("[data-label]")?.textContent ?? "",
        [...line.querySelectorAll("[data-cell]")].map(cell => [
            cell.textContent,
            cell.dataset.act ?? "",
            cell.ariaPressed === "true" || cell.ariaCurrent === "page",
        ]),
    ]),
    document.querySelector("[role=search]") === null,
]"""
_FIELD = "input[type=search]"


class BrowserShop:
    """A tab in the process's browser, and a session at the process's server."""

    def __init__(self, store: int, products: int) -> None:
        """Prepare; nothing is opened yet. Raises: InvalidInput: Playwright or Chromium is missing."""
        check_browser("web/shop-v0 with browser=True")
        self._arguments = store, products
        self._engine = TextShop(store, products)
        self._tab = Tab()
        self._session: ShopSession | None = None
        self._end: Callable[[], object] = lambda: None

    def enter(self, visit: ShopVisit) -> ShopView:
        """Open the page of a visit. Raises: EnvFailure: the browser failed."""
        self._end()
        session = self._session = server().begin(self._engine, visit)
        self._end = weakref.finalize(self, server().end, session)
        url = server().url(session)

        async def job(document: "Document") -> ShopPage:
            _check(await document.goto(url, wait_until="domcontentloaded"))
            return await read_page(document)

        return ShopView(visit, self._tab.run(job))

    def act(self, view: ShopView, act: PageAction) -> ShopView:
        """Type into the search field, or click on what bears the act. Raises: EnvFailure: the browser failed."""
        if self._session is None or self._session.view.visit != view.visit or not self._tab.is_open:
            self.enter(view.visit)

        async def job(document: "Document") -> ShopPage:
            async with document.expect_navigation(wait_until="domcontentloaded") as answer:
                if act.verb == SEARCH.verb:
                    await document.fill(_FIELD, act.argument)
                    await document.press(_FIELD, "Enter")
                else:
                    await document.click(f"[data-act={json.dumps(str(act))}]")
            _check(await answer.value)
            return await read_page(document)

        page = self._tab.run(job)
        assert self._session is not None
        return ShopView(self._session.view.visit, page)

    def screenshot(self) -> bytes:
        """Return a picture of the page, as PNG. Raises: EnvFailure: the browser failed."""

        async def job(document: "Document") -> bytes:
            picture: bytes = await document.screenshot()
            return picture

        return self._tab.run(job)

    def fresh(self) -> Self:
        """Return a way into the store with a tab and a session of its own."""
        return type(self)(*self._arguments)

    def close(self) -> None:
        """Close the tab and leave the store; twice is harmless."""
        self._end()
        self._session = None
        self._tab.close()

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        """Leave out the tab and the session: the copy opens its own."""
        return type(self), self._arguments


def _check(answer: "Response | None") -> None:
    if answer is None or not answer.ok:
        raise EnvFailure(f"The store answers {answer.status if answer else 'nothing'} instead of a page.")


async def read_page(document: "Document") -> ShopPage:
    lines, is_end = await document.evaluate(_READ)
    return ShopPage(
        tuple(
            PageLine(label, tuple(LineCell(text, PageAction.read(act), is_chosen) for text, act, is_chosen in cells))
            for label, cells in lines
        ),
        is_end=is_end,
    )
