"""The browser of the process: one thread, one Chromium, and whatever goes wrong is an `EnvFailure`."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from envgym.envs.web import _browser
from envgym.envs.web._browser import Tab, check_browser
from envgym.errors import EnvFailure, InvalidInput

if TYPE_CHECKING:
    from playwright.async_api import Page

needs_browser = [
    pytest.mark.web,
    pytest.mark.skipif(
        find_spec("playwright") is None or _browser._command() is None,
        reason="no Chromium or no playwright (Debian: apt-get install chromium; pip install 'envgym[web]')",
    ),
]


@pytest.fixture
def tab() -> Iterator[Tab]:
    with closing(Tab()) as made:
        yield made


async def add(page: "Page") -> int:
    return int(await page.evaluate("1 + 1"))


async def browser_pid(page: "Page") -> int:
    assert page.context.browser is not None
    session = await page.context.browser.new_browser_cdp_session()
    told = await session.send("SystemInfo.getProcessInfo")
    return next(int(process["id"]) for process in told["processInfo"] if process["type"] == "browser")


async def wait(page: "Page") -> None:
    await page.wait_for_timeout(60_000)


def web(function: object) -> object:
    for mark in needs_browser:
        function = mark(function)
    return function


@web
def test_all_tabs_of_all_threads_share_one_browser_and_one_thread() -> None:
    async def thread(page: "Page") -> int:
        return threading.get_ident()

    def use(_: int) -> tuple[int, int]:
        with closing(Tab()) as tab:
            return tab.run(thread), tab.run(browser_pid)

    with ThreadPoolExecutor(max_workers=3) as pool:
        found = set(pool.map(use, range(3)))
    assert len(found) == 1
    assert threading.get_ident() not in {ident for ident, _ in found}


@web
def test_a_script_runs_before_that_of_each_page() -> None:
    async def told(page: "Page") -> list[object]:
        await page.goto("data:text/html,<script>seen = typeof marker</script>")
        return [await page.evaluate("seen"), await page.evaluate("marker")]

    with closing(Tab(script="window.marker = 7")) as tab:
        assert tab.run(told) == ["number", 7]


@web
def test_a_killed_browser_is_a_failure_of_the_env_and_the_next_work_gets_a_new_one(tab: Tab) -> None:
    pid = tab.run(browser_pid)
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = pool.submit(tab.run, wait)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EnvFailure, match="The browser failed"):
            waiting.result(30)
    assert tab.run(add) == 2
    assert tab.run(browser_pid) != pid


@web
def test_a_crashed_page_is_a_failure_of_the_env_and_leaves_other_tabs_alone(tab: Tab) -> None:
    async def crash(page: "Page") -> None:
        await page.goto("chrome://crash")

    with closing(Tab()) as neighbour:
        assert neighbour.run(add) == 2
        with pytest.raises(EnvFailure, match="The browser failed"):
            tab.run(crash)
        assert neighbour.is_open
        assert (tab.run(add), neighbour.run(add)) == (2, 2)


@web
def test_a_page_that_hangs_is_a_failure_of_the_env(tab: Tab) -> None:
    async def hang(page: "Page") -> None:
        await page.evaluate("while (true) {}")

    assert tab.run(add) == 2
    with pytest.raises(EnvFailure, match=r"does not answer within 0\.5 s"):
        tab.run(hang, limit_s=0.5)
    assert tab.run(add) == 2


@web
def test_a_window_that_a_page_opens_is_closed(tab: Tab) -> None:
    async def pages(page: "Page") -> int:
        await page.evaluate("void window.open('about:blank')")
        while len(page.context.pages) > 1:
            await page.wait_for_timeout(10)
        return len(page.context.pages)

    assert tab.run(pages) == 1


class Greeting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"hello"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@web
def test_only_this_machine_is_reached_and_nothing_where_offline() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"

        async def open_page(page: "Page") -> str:
            await page.goto(url)
            text: str = await page.inner_text("body")
            return text

        with closing(Tab()) as online, closing(Tab(offline=True)) as offline:
            assert online.run(open_page) == "hello"
            with pytest.raises(EnvFailure, match="ERR_INTERNET_DISCONNECTED"):
                offline.run(open_page)
        server.shutdown()

    async def leave(page: "Page") -> None:
        await page.goto("http://example.org/")

    with closing(Tab()) as tab, pytest.raises(EnvFailure, match="ERR_NAME_NOT_RESOLVED"):
        tab.run(leave)


@web
def test_closing_twice_is_harmless_and_a_closed_tab_opens_again(tab: Tab) -> None:
    assert tab.run(add) == 2
    tab.close()
    tab.close()
    assert not tab.is_open
    assert tab.run(add) == 2


def test_what_is_missing_is_one_sentence_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(_browser, "_has_downloaded", lambda: False)
    monkeypatch.setattr(_browser, "find_spec", lambda name: object())
    with pytest.raises(InvalidInput, match=r"a Chromium browser must be installed, got none \(web/x-v0\); .*chromium"):
        check_browser("web/x-v0")
    monkeypatch.setattr(_browser, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"no playwright \(web/x-v0\); pip install 'envgym\[web\]'\."):
        check_browser("web/x-v0")
