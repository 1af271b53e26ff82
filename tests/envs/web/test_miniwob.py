"""`web/miniwob-v0` in real Chromium: pages start and repeat, oracles solve theirs, faults are answers or endings."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import Distribution, PackageNotFoundError
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

import envgym
from envgym.conformance.agents import call_text
from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending, Invalid
from envgym.envs.web import _browser, _miniwob_page
from envgym.envs.web.miniwob import MiniWob
from envgym.errors import InvalidInput
from tests.envs.episodes import conformance

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.web, pytest.mark.timeout(600)]

HAS_PARTS = all(map(find_spec, ("playwright", "miniwob"))) and _browser._command() is not None
needs_parts = pytest.mark.skipif(
    not HAS_PARTS,
    reason="no Chromium, playwright or miniwob (Debian: apt-get install chromium; pip install 'envgym[web]')",
)


TestMiniWob = needs_parts(conformance("web/miniwob-v0", num_tasks=2))


@pytest.fixture(scope="module")
def env() -> Iterator[MiniWob]:
    if not HAS_PARTS:
        pytest.skip(str(needs_parts.kwargs["reason"]))
    with closing(MiniWob(pages="all", limit_s=20.0)) as made:
        yield made


@pytest.fixture(scope="module")
def mouse_env() -> Iterator[MiniWob]:
    if not HAS_PARTS:
        pytest.skip(str(needs_parts.kwargs["reason"]))
    with closing(MiniWob(pages="all", input="mouse")) as made:
        yield made


def problem(page: str, seed: int) -> Task:
    return Task(id=f"{page}/{seed}", prompt="", payload={"page": page, "seed": seed}, split=Split.TRAIN)


def solve(env: MiniWob, page: str, seed: int) -> ObservedEpisode:
    return play(env, oracle_of(env), seed=0, task=problem(page, seed), max_turns=30)


def start(env: MiniWob, page: str, seed: int) -> str:
    return str(env.reset(options={"task": problem(page, seed)}).observation)


# ---- all pages ----------------------------------------------------------------------------------------------------


def test_every_page_starts_and_repeats_after_another_problem_and_in_a_fresh_page(env: MiniWob) -> None:
    assert len(env.pages) == 130
    for page in env.pages:
        first = start(env, page, 5)
        assert first.count("\n") >= 1, page
        start(env, page, 6)
        env.step("press Tab")  # something that leaves traces
        assert start(env, page, 5) == first, page


def test_a_page_that_was_used_shows_what_a_fresh_one_shows(env: MiniWob, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in ("click-checkboxes", "use-slider", "email-inbox", "drag-items", "book-flight", "text-editor"):
        start(env, page, 1)
        for action in ("click 2", "fill 1 abc", "press x Enter"):
            if env.step(action).terminated:
                break
        used = start(env, page, 2)
        monkeypatch.setattr(_miniwob_page, "_idle", _miniwob_page._IdleTabs())
        with closing(MiniWob(pages="all")) as fresh:
            assert start(fresh, page, 2) == used, page


def test_a_closed_env_leaves_its_page_to_the_next_and_open_ones_share_none(monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_PARTS:
        pytest.skip(str(needs_parts.kwargs["reason"]))
    monkeypatch.setattr(_miniwob_page, "_idle", _miniwob_page._IdleTabs())
    envs = [MiniWob(pages="all") for _ in range(4)]
    first, second, third, fourth = envs
    start(first, "click-checkboxes", 1)
    start(second, "enter-text", 1)
    pages = [env._page._tab._page for env in (first, second)]
    for env in (first, second):
        env.step("click 1")
        env.close()
    seen = start(third, "click-checkboxes", 2)
    assert third._page._tab._page is pages[0]  # the one that shows what is asked for
    start(fourth, "click-link", 1)
    assert fourth._page._tab._page is pages[1]  # any other one goes there
    with closing(MiniWob(pages="all")) as fresh:
        assert start(fresh, "click-checkboxes", 2) == seen
        assert fresh._page._tab._page not in pages
    for env in envs:
        env.close()
        env.close()
    assert solve(first, "click-test", 1).reward == 1.0
    first.close()


def test_at_most_so_many_pages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    class Open:
        is_open = True

        def __init__(self, number: int) -> None:
            self.number = number

        def close(self) -> None:
            closed.append(self.number)

    monkeypatch.setattr(_miniwob_page, "MAX_IDLE", 2)
    idle, tabs = _miniwob_page._IdleTabs(), [Open(number) for number in range(4)]
    for tab, name in zip(tabs, ("a", "b", "b", "a"), strict=True):
        idle.put(name, tab)  # type: ignore[arg-type]  # all that is asked of a tab
    assert closed == [0, 1]
    tabs[3].is_open = False
    taken = idle.take("a")
    assert taken is not None
    assert (taken[0], getattr(taken[1], "number", None)) == ("b", 2)
    assert idle.take("b") is None


def test_oracles_solve_every_page_that_has_one(env: MiniWob) -> None:
    pages = MiniWob().pages
    assert len(pages) >= 60
    unsolved = {page: solve(env, page, seed).reward for page in pages for seed in (11,)}
    assert {page: reward for page, reward in unsolved.items() if reward != 1.0} == {}


@pytest.mark.parametrize(
    "page, seed",
    [
        ("draw-line", 179696630),  # the dot lies between two moves of a drag from edge to edge
        ("highlight-text", 765801806),  # the last letter is narrow and stands at the right edge
    ],
)
def test_problems_at_the_edge_of_what_a_page_takes_are_solved(
    env: MiniWob, mouse_env: MiniWob, page: str, seed: int
) -> None:
    assert [solve(made, page, seed).reward for made in (env, mouse_env)] == [1.0, 1.0]


@pytest.mark.parametrize(
    "page",
    [
        "click-button",
        "click-menu",
        "enter-text",
        "drag-items",
        "use-slider",
        "highlight-text",
        "choose-date",
        "draw-line",
    ],
)
def test_a_real_mouse_does_what_events_of_the_page_do(env: MiniWob, mouse_env: MiniWob, page: str) -> None:
    by_events, by_mouse = solve(env, page, 3), solve(mouse_env, page, 3)
    assert by_events.observation == by_mouse.observation
    assert (by_mouse.reward, by_mouse.ending) == (1.0, Ending.TERMINATED)


def test_both_splits_are_disjoint_and_repeat() -> None:
    source = MiniWob().tasks
    tasks = {split: [source.task(split, index) for index in range(100)] for split in Split}
    assert not {task.key for task in tasks[Split.TRAIN]} & {task.key for task in tasks[Split.TEST]}
    assert tasks[Split.TEST][7] == MiniWob().tasks.task(Split.TEST, 7)


# ---- what is seen and done -----------------------------------------------------------------------------------------


def test_an_episode_by_hand(env: MiniWob) -> None:
    first = start(env, "click-checkboxes", 1)
    boxes = '[1] checkbox "USa" unchecked\n[2] checkbox "DKkQH" unchecked\n[3] button "Submit"'
    assert first == f"Task: Select DKkQH and click Submit.\n{boxes}"
    second = env.step("click 2").observation
    assert second == first.replace('[2] checkbox "DKkQH" unchecked', '*[2] checkbox "DKkQH" checked focused')
    result = env.step("I am done.\nclick 3")
    assert (result.observation, result.reward, result.terminated) == ("The page is done: 1.", 1.0, True)
    assert result.info["envgym"].reward.components == {"solved": 1.0, "page": 1.0}


def test_calls_of_tools_do_the_same_and_show_the_page_once(env: MiniWob) -> None:
    start(env, "click-checkboxes", 1)
    calls = call_text("click", {"element": 2}) + call_text("click", {"element": 99})
    told = env.step(calls).observation.splitlines()
    assert told[:3] == ["Done.", "There is no element 99: the elements are numbered up to 3.", told[2]]
    assert told[2] == "Task: Select DKkQH and click Submit."
    result = env.step(call_text("click", {"element": 3}) + call_text("back", {}))
    assert result.reward == 1.0
    assert result.observation.splitlines() == ["Done.", "The episode is over.", "The page is done: 1."]


def test_a_wrong_click_pays_nothing_and_tells_what_the_page_gave(env: MiniWob) -> None:
    start(env, "click-checkboxes", 1)
    env.step("click 1")
    result = env.step("click 3")  # one box is wrong, the other is missing
    assert (result.reward, result.terminated) == (0.0, True)
    assert result.info["envgym"].reward.components == {"solved": 0.0, "page": -1.0}


def test_time_passes_with_actions_alone(env: MiniWob) -> None:
    # Seed 7 asks for 2 seconds between both clicks; each action takes 1. Off by 1 of 2 s the page pays 0.35, by 2 -1.
    for waits, reward in ((1, 1.0), (0, 0.35), (3, 0.0)):
        assert "wait 2 seconds" in start(env, "button-delay", 7)
        for action in ("click 1", *["hover 1"] * waits, "click 2"):
            result = env.step(action)
        assert result.reward == pytest.approx(reward)


@pytest.mark.parametrize(
    "action, told",
    [
        ("goto file:///etc/passwd", "file:///etc/passwd is blocked: this page is all there is."),
        ("back", "There is no earlier page."),
        ("click 77", "There is no element 77: the elements are numbered up to 3."),
        ("select 1 x", "That element has no options."),
        ("fill 3 x", "That element is no text field."),
        ("press F5", "There is no key 'F5'"),
        ("hello", "Say one action, in a line of its own"),
    ],
)
def test_what_cannot_be_done_is_answered(env: MiniWob, action: str, told: str) -> None:
    start(env, "click-checkboxes", 1)
    result = env.step(action)
    assert result.observation.startswith(told)
    assert result.info["envgym"].ending is None


def test_giving_up_ends_the_episode(env: MiniWob) -> None:
    start(env, "click-checkboxes", 1)
    result = env.step("answer I cannot")
    assert (result.observation, result.reward, result.terminated) == ("You gave up.\nThe page is done: 0.", 0.0, True)


# ---- forks ---------------------------------------------------------------------------------------------------------


def test_a_fork_replays_the_episode_and_goes_its_own_way(env: MiniWob) -> None:
    start(env, "click-checkboxes", 7)
    env.step("click 2")
    with closing(env.fork()) as twin:
        assert twin.step("click 3").observation == env.step("click 3").observation
        assert twin.step("click 4").observation.count(" checked") == 3
        assert env.step("click 5").reward == 0.5  # 3 of 4 boxes are right: 2 * 3 / 4 - 1
        assert twin.step("click 5").reward == 1.0


# ---- pages that misbehave ------------------------------------------------------------------------------------------


def plant(env: MiniWob, script: str) -> int:
    """Put a button that runs `script` on the page; return its number."""

    async def job(page: "Page") -> None:
        await page.evaluate(
            "script => { const b = document.createElement('button'); b.textContent = 'trap';"
            "b.addEventListener('click', () => (0, eval)(script)); document.body.append(b); }",
            script,
        )

    start(env, "click-test", 1)
    env._page._tab.run(job)
    env.step("scroll by 0")
    found = next(node.id for node in env.state.nodes if node.name == "trap")
    assert found is not None
    return found


@pytest.mark.parametrize(
    "script, told",
    [
        ("alert('hi')", "The page says: hi"),
        ("if (confirm('sure?')) throw 1", "The page asks: sure? It was told no."),
        ("if (prompt('name?') !== null) throw 1", "The page asks: name? It was told nothing."),
        ("window.open('http://example.org')", "The page tried to open a window on http://example.org; it was not"),
        ("location.href = 'http://example.org/'", "The page tried to go to http://example.org/; that is blocked."),
        ("location.reload()", "The page tried to go to file:///"),
        (
            "const a = document.createElement('a'); a.href = 'data:,x'; a.download = 'x.txt'; a.click()",
            "The page tried to download data:,x; that is blocked.",
        ),
        ("document.body.append(document.createElement('form')); document.forms[0].submit()", "The page tried to send"),
        ("throw new Error('broken')", "Task: Click the button."),
        (
            "setInterval(() => {}, 0); setTimeout(function again() { setTimeout(again, 0) }, 0)",
            "Task: Click the button.",
        ),
        ("document.body.remove()", ""),
    ],
)
def test_a_page_that_wants_to_leave_ask_or_break_is_an_observation(env: MiniWob, script: str, told: str) -> None:
    number = plant(env, script)
    result = env.step(f"click {number}")
    record = result.info["envgym"]
    if told:
        assert result.observation.startswith(told), record.error
        assert record.ending is None
    else:
        assert record.ending in (None, Ending.ERROR_ENV)
    assert "Click Me!" in start(env, "click-test", 1)


def test_a_page_that_hangs_is_an_invalid_episode_and_the_next_is_whole() -> None:
    with closing(MiniWob(pages="all", limit_s=3.0)) as env:
        number = plant(env, "while (true) {}")
        result = env.step(f"click {number}")
        assert result.info["envgym"].ending is Ending.ERROR_ENV
        assert "does not answer within 3 s" in result.info["envgym"].error
        assert solve(env, "click-test", 2).reward == 1.0


def test_a_killed_browser_is_an_invalid_episode_and_the_next_is_whole(env: MiniWob) -> None:
    from tests.envs.web.test_browser import browser_pid

    start(env, "click-test", 1)
    os.kill(env._page._tab.run(browser_pid), signal.SIGKILL)
    result = env.step("click 1")
    record = result.info["envgym"]
    assert (record.ending, result.truncated, result.reward) == (Ending.ERROR_ENV, True, 0.0)
    assert isinstance(record.reward, Invalid)
    assert solve(env, "click-test", 2).reward == 1.0


def test_a_browser_that_died_between_episodes_is_not_noticed(env: MiniWob) -> None:
    from tests.envs.web.test_browser import browser_pid

    first = start(env, "click-link", 1)
    os.kill(env._page._tab.run(browser_pid), signal.SIGKILL)
    assert start(env, "click-link", 1) == first


def test_nothing_but_the_pages_is_reached(env: MiniWob) -> None:
    async def fetched(page: "Page") -> str:
        return str(await page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'reached', error => error.message)"))

    start(env, "click-test", 1)
    assert env._page._tab.run(fetched) == "Failed to fetch"


# ---- what is missing ------------------------------------------------------------------------------------------------


def test_missing_pages_are_one_sentence_and_the_env_stays_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    _miniwob_page.folder.cache_clear()
    _miniwob_page.page_names.cache_clear()

    def missing(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(_miniwob_page, "distribution", missing)
    monkeypatch.setattr("envgym.envs.web.miniwob.check_browser", lambda where: None)
    with pytest.raises(InvalidInput, match=r"no miniwob \(web/miniwob-v0\); pip install 'envgym\[web\]'\.$"):
        envgym.make("web/miniwob-v0")
    assert "web/miniwob-v0" in envgym.list_ids()
