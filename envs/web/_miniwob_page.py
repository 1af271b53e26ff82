"""A tab that shows MiniWoB's pages: start a problem, act, read."""

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal

from envgym.core.json_types import JsonObject, JsonValue
from envgym.envs.web._browser import Tab
from envgym.envs.web._miniwob_actions import PageCommand
from envgym.envs.web._miniwob_view import PageView
from envgym.errors import EnvFailure, InvalidInput

if TYPE_CHECKING:
    from playwright.async_api import Page

Input = Literal["dom", "mouse"]
"""Events made in the page, or those of a mouse, made by the browser."""
TURN_MS: Final = 1000
"""What passes on the page's clock with each action: enough for its animations to end."""
SIZE: Final = {"width": 500, "height": 320}
_SCRIPTS: Final = ("miniwob_clock.js", "miniwob_view.js", "miniwob_act.js", "miniwob_task.js")
_BEGIN: Final = "([seed]) => envgym.begin(seed) ? envgym.turn(null, null, 0) : null"
_TURN: Final = "([name, action, ms]) => envgym.turn(name, action, ms)"
_POINT: Final = "([place]) => envgym.element(place.id) && envgym.point(place)"
_CONTEXT: Final = {
    "offline": True,
    "accept_downloads": False,
    "viewport": SIZE,
    "locale": "en-US",
    "timezone_id": "UTC",
    "service_workers": "block",
}


@lru_cache(maxsize=1)
def folder() -> Path:
    """Return where the pages lie; the package itself, which needs more, is not imported.

    Raises: InvalidInput: it is not installed.
    """
    try:
        wheel = distribution("miniwob")
    except PackageNotFoundError:
        do = "pip install 'envgym[web]'"
        got, where = "no miniwob", "web/miniwob-v0"
        raise InvalidInput.of("the pages of MiniWoB", "be installed", got, where=where, do=do) from None
    return Path(str(wheel.locate_file("miniwob"))) / "html" / "miniwob"


@lru_cache(maxsize=1)
def page_names() -> tuple[str, ...]:
    """Return the names of all pages, in alphabetical order. Raises: InvalidInput: the wheel is not installed."""
    return tuple(sorted(path.stem for path in folder().glob("*.html")))


@lru_cache(maxsize=1)
def _script() -> str:
    here = Path(__file__).parent / "static"
    return "\n".join((here / name).read_text(encoding="utf-8") for name in _SCRIPTS)


MAX_IDLE: Final = 64


class _IdleTabs:
    """Tabs of closed envs, with the names of their pages, for the next envs: most envs live for one episode."""

    def __init__(self) -> None:
        self._tabs: list[tuple[str, Tab]] = []
        self._lock = Lock()

    def put(self, name: str, tab: Tab) -> None:
        with self._lock:
            self._tabs.append((name, tab))
            dropped = self._tabs.pop(0)[1] if len(self._tabs) > MAX_IDLE else None
        if dropped is not None:
            dropped.close()

    def take(self, name: str) -> tuple[str, Tab] | None:
        """Hand out a living tab, if there is one: the last that shows `name`, or else the last."""
        with self._lock:
            self._tabs = [item for item in self._tabs if item[1].is_open]
            places = range(len(self._tabs))
            best = max(places, key=lambda place: (self._tabs[place][0] == name, place), default=None)
            return None if best is None else self._tabs.pop(best)


_idle = _IdleTabs()


def _forget() -> None:
    """Begin anew in a forked process: it has no browser yet, and nobody would let go of the lock."""
    global _idle  # noqa: PLW0603  # idle tabs are the process's, as its browser is
    _idle = _IdleTabs()


os.register_at_fork(after_in_child=_forget)


class MiniWobPage:
    """One tab, which goes on with the page it has where the next problem is of the same kind."""

    def __init__(self, input: Input, limit_s: float) -> None:
        """Prepare a tab; it is opened with the first problem. A page that needs longer than `limit_s` hangs."""
        self._limit_s = limit_s
        self._tab = _new_tab()
        self._acts: Mapping[str, _Act] = _MOUSE if input == "mouse" else {}
        self._name: str | None = None

    def begin(self, name: str, seed: int) -> PageView:
        """Start a problem, in a fresh page or in one that is as a fresh one.

        Raises: EnvFailure: twice, the browser did not do it.
        """
        try:
            return self._begin(name, seed)
        except EnvFailure:  # the browser may have died since the last episode
            return self._begin(name, seed)

    def _begin(self, name: str, seed: int) -> PageView:
        if not self._tab.is_open:
            self._name, self._tab = _idle.take(name) or (None, _new_tab())
        is_there = self._name == name
        self._name = None
        url = (folder() / f"{name}.html").as_uri()

        async def job(page: "Page") -> str:
            text: str | None = await page.evaluate(_BEGIN, [seed]) if is_there else None
            if text is None:
                await page.goto(url)
                text = await page.evaluate(_BEGIN, [seed])
            assert text is not None, "a page that was just loaded is as loaded"
            return text

        view = PageView.read(name, self._tab.run(job, limit_s=self._limit_s))
        self._name = name
        return view

    def act(self, view: PageView, command: PageCommand) -> PageView:
        """Do something, let time pass, and read the page. Raises: EnvFailure: the browser failed."""
        act = _press if command.name == "press" else self._acts.get(command.name, _act)
        text = self._tab.run(lambda page: act(page, command), limit_s=self._limit_s)
        return PageView.read(view.page, text, [*view.past, str(command)])

    def screenshot(self) -> bytes:
        picture: bytes = self._tab.run(
            lambda page: page.screenshot(clip={"x": 0, "y": 0, "width": 160, "height": 210}), limit_s=self._limit_s
        )
        return picture

    def close(self) -> None:
        """Leave the tab to the next env, if it is whole; close it otherwise."""
        name, tab = self._name, self._tab
        self._name, self._tab = None, _new_tab()
        if name is not None and tab.is_open:
            _idle.put(name, tab)
        else:
            tab.close()


def _new_tab() -> Tab:
    return Tab(script=_script(), **_CONTEXT)


_Act = Callable[["Page", PageCommand], Awaitable[str]]


async def _turn(page: "Page", name: str | None, action: JsonObject | None) -> str:
    text: str = await page.evaluate(_TURN, [name, action, TURN_MS])
    return text


async def _act(page: "Page", command: PageCommand) -> str:
    return await _turn(page, command.name, command.for_page())


async def _press(page: "Page", command: PageCommand) -> str:
    if command.start is not None:
        await page.evaluate("(action) => envgym.act('focus', action)", command.for_page())
    for key in command.keys:
        await page.keyboard.press(key)
    return await _turn(page, None, None)


# ---- with a real mouse --------------------------------------------------------------------------------------------

_STEPS: Final = 12


async def _move(page: "Page", place: JsonValue, steps: int = 1) -> bool:
    """Move the mouse to a place; return whether it is there."""
    at: Mapping[str, float] | None = await page.evaluate(_POINT, [place])
    if at is not None:
        await page.mouse.move(at["x"], at["y"], steps=steps)
    return at is not None


async def _mouse(page: "Page", command: PageCommand) -> str:
    places = command.for_page()
    if not await _move(page, places["from"]):
        return await _act(page, command)  # which says that it is gone
    if command.name != "hover":
        await page.mouse.down()
    if command.end is not None:
        await _move(page, places["to"], _STEPS)
    if command.name != "hover":
        await page.mouse.up()
    return await _turn(page, None, None)


_MOUSE: Final[Mapping[str, _Act]] = {"click": _mouse, "hover": _mouse, "drag": _mouse}
