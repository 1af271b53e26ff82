"""One Chromium for the process, owned by one thread with an event loop; envs hand it work and wait.

A `Tab` is one page in a context of its own. Whatever goes wrong with it (the browser died, the page crashed, hangs or
raises) is an `EnvFailure`, and the next work of the tab gets a new page, in a new browser if need be.
"""

import asyncio
import atexit
import os
import shutil
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from envgym.errors import EnvFailure, InvalidInput
from envgym.runtime.event_loop import LoopThread

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page, Playwright

ResultT = TypeVar("ResultT")

LIMIT_S = 60.0
"""Real seconds after which a page that does not answer counts as hanging: far above what a busy machine needs."""
CLOSE_LIMIT_S = 5.0
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)
"""What keeps Chromium quiet, and away from every network but this machine's own."""


def check_browser(where: str) -> None:
    """See that a browser can be started. Raises: InvalidInput: Playwright or Chromium is missing."""
    if find_spec("playwright") is None:
        do = "pip install 'envgym[web]'"
        raise InvalidInput.of("the browser driver", "be installed", "no playwright", where=where, do=do)
    if _command() is None and not _has_downloaded():
        do = "install it (Debian: apt-get install chromium; elsewhere: playwright install chromium)"
        raise InvalidInput.of("a Chromium browser", "be installed", "none", where=where, do=do)


def _command() -> str | None:
    return next(filter(None, map(shutil.which, COMMANDS)), None)


def _has_downloaded() -> bool:
    homes = (os.environ.get("PLAYWRIGHT_BROWSERS_PATH"), "~/.cache/ms-playwright", "~/Library/Caches/ms-playwright")
    return any(any(Path(home).expanduser().glob("chromium*/chrome*")) for home in homes if home)


class Tab:
    """One page in a context of its own, used from any one thread at a time."""

    def __init__(self, *, script: str = "", **context: Any) -> None:  # whatever Playwright's new_context takes
        """Prepare a tab; its page is opened with the first work.

        Args:
            script: JavaScript that runs in each document before the document's own.
            **context: Options of Playwright's `new_context`.
        """
        self._script, self._options = script, context
        self._owner: _BrowserThread | None = None
        self._page: Page | None = None
        self._finalizer: Callable[[], object] = _nothing

    @property
    def is_open(self) -> bool:
        return self._page is not None and self._owner is _owner() and self._owner.is_alive(self._page)

    def run(self, job: "Callable[[Page], Awaitable[ResultT]]", *, limit_s: float = LIMIT_S) -> ResultT:
        """Do something with the page, in the browser's thread; wait for the result.

        Raises: EnvFailure: the browser, its page or the job failed, or took longer than `limit_s`.
        """
        if not self.is_open:
            self.close()
            self._open()
        assert self._owner is not None
        assert self._page is not None
        try:
            return self._owner.submit(_applied(job, self._page), limit_s)
        except EnvFailure:
            self.close()
            raise

    def _open(self) -> None:
        owner = _owner()
        self._page = owner.submit(owner.open(self._script, self._options), LIMIT_S)
        self._owner = owner
        self._finalizer = weakref.finalize(self, owner.release, self._page.context)

    def close(self) -> None:
        """Close the page; twice is harmless."""
        self._finalizer()
        self._page, self._owner, self._finalizer = None, None, _nothing


class _BrowserThread:
    """The browser of this process, with the only thread that touches it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = LoopThread("envgym-browser")
        self._lock = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._crashed: weakref.WeakSet[Page] = weakref.WeakSet()

    def submit(self, work: Coroutine[Any, Any, ResultT], limit_s: float) -> ResultT:
        from playwright.async_api import Error

        future = self._loop.begin(asyncio.wait_for(work, limit_s))
        try:
            return future.result()
        except TimeoutError:
            raise EnvFailure(f"The page does not answer within {limit_s:g} s.") from None
        except Error as error:
            raise EnvFailure(f"The browser failed: {error.message}") from error
        except BaseException:
            future.cancel()
            raise

    def is_alive(self, page: "Page") -> bool:
        browser = self._browser
        is_lost = browser is None or not browser.is_connected() or page.context.browser is not browser
        return not is_lost and not page.is_closed() and page not in self._crashed

    async def open(self, script: str, options: Mapping[str, Any]) -> "Page":
        async with self._lock:
            browser = await self._live_browser()
        context = await browser.new_context(**options)
        if script:
            await context.add_init_script(script)
        page = await context.new_page()
        context.on("page", _close_soon)  # windows that a page opens
        page.on("crash", self._crashed.add)
        return page

    async def _live_browser(self) -> "Browser":
        from playwright.async_api import async_playwright

        if self._browser is not None and self._browser.is_connected():
            return self._browser
        await self._stop()
        self._playwright = await async_playwright().start()
        chromium = self._playwright.chromium
        self._browser = await chromium.launch(executable_path=_command(), args=list(FLAGS), handle_sigint=False)
        return self._browser

    def release(self, context: "BrowserContext") -> None:
        if self._loop.is_running:
            self._loop.begin(self._close(context))

    async def _close(self, context: "BrowserContext") -> None:
        from playwright.async_api import Error

        try:
            await asyncio.wait_for(context.close(), CLOSE_LIMIT_S)
        except Error:
            return  # it is gone already
        except TimeoutError:
            if context.browser is self._browser:
                await self._stop()

    async def _stop(self) -> None:
        """Close what there is; a driver that died cannot be closed and need not be."""
        browser, playwright = self._browser, self._playwright
        self._browser = self._playwright = None
        closes: list[Callable[[], Coroutine[Any, Any, None]]] = []
        closes += [browser.close] if browser is not None else []
        closes += [playwright.stop] if playwright is not None else []
        for close in closes:
            await asyncio.gather(asyncio.wait_for(close(), CLOSE_LIMIT_S), return_exceptions=True)

    def shut_down(self) -> None:
        if os.getpid() == self._pid:
            self._loop.begin(self._stop()).result(4 * CLOSE_LIMIT_S)


async def _applied(job: "Callable[[Page], Awaitable[ResultT]]", page: "Page") -> ResultT:
    return await job(page)


def _close_soon(page: "Page") -> None:
    task = asyncio.ensure_future(page.close())
    task.add_done_callback(lambda done: done.exception())


def _nothing() -> None:
    """Do nothing."""


_the_owner: _BrowserThread | None = None
_the_lock = Lock()


def _owner() -> _BrowserThread:
    global _the_owner  # noqa: PLW0603  # one browser per process is the point
    with _the_lock:
        if _the_owner is None:
            _the_owner = _BrowserThread()
            atexit.register(_the_owner.shut_down)
        return _the_owner


def _forget() -> None:
    """Start anew in a forked process: threads and pipes stayed with the parent."""
    global _the_owner, _the_lock  # as there
    _the_owner, _the_lock = None, Lock()


os.register_at_fork(after_in_child=_forget)
