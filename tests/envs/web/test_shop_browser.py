"""`web/shop-v0` through real Chromium: page for page what the engine says, escaped, and from this machine alone."""

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from envgym.core.turns import Ending
from envgym.envs.web import _browser
from envgym.envs.web._browser import check_browser
from envgym.envs.web._shop_browser import BrowserShop, read_page
from envgym.envs.web._shop_clients import TextShop
from envgym.envs.web._shop_pages import LineCell, PageAction, PageLine, ShopPage
from envgym.envs.web._shop_server import render_page, server
from envgym.envs.web._shop_store import ShopVisit
from envgym.envs.web.shop import Shop
from envgym.errors import InvalidInput
from envgym.records import StepResult
from envgym.seeds import generator

if TYPE_CHECKING:
    from playwright.async_api import Page as Document

pytestmark = [pytest.mark.web, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Shop]:
    try:
        check_browser("test")
    except InvalidInput as missing:
        pytest.skip(str(missing))
    env = Shop(browser=True)
    yield env
    env.close()


def browser_client(env: Shop) -> BrowserShop:
    assert isinstance(env._client, BrowserShop)
    return env._client


def random_act(env: Shop, seed: int, turn: int) -> str:
    """Return something that the page offers, or does not."""
    rng = generator("parity", seed, turn)
    page = env.state.view.page
    offered = [
        str(cell.act) for line in page.lines for cell in line.cells if cell.act and cell.act.verb != "place_order"
    ]
    others = ["search[Women's 9.5\" pan & <b>lamp</b>]", "open[P0000]", "choose[size: huge]", "nonsense", "search[]"]
    many = [act for act in offered if act.startswith(("choose", "open", "add"))] * 3
    return [*offered, *many, *others][rng.integers(len(offered) + len(many) + len(others))]


def describe_goals(result: StepResult) -> tuple[object, ...]:
    record = result.info["envgym"]
    return (str(result.observation), record.observation.messages, record.reward, record.ending, record.tool_errors)


@pytest.mark.parametrize("index", range(3))
def test_oracle_sees_the_same_through_both_doors(browser: Shop, index: int) -> None:
    engine = Shop()
    options = {"split": "test", "index": index}
    assert browser.reset(options=options).observation == engine.reset(options=options).observation
    while True:
        action = engine.oracle()
        assert browser.oracle() == action
        through_engine, through_browser = engine.step(action), browser.step(action)
        assert describe_goals(through_browser) == describe_goals(through_engine)
        assert browser.state == engine.state
        if through_engine.terminated:
            break
    assert through_browser.reward == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_strolling_about_shows_the_same_through_both_doors(browser: Shop, seed: int) -> None:
    engine = Shop()
    for env in (engine, browser):
        env.reset(options={"index": seed})
    for turn in range(20):
        act = random_act(engine, seed, turn)
        assert describe_goals(browser.step(act)) == describe_goals(engine.step(act)), act
        assert browser.state == engine.state


def test_a_fork_has_a_tab_of_its_own(browser: Shop) -> None:
    browser.reset(options={"index": 1})
    for _ in range(2):
        browser.step(browser.oracle())
    twin, action = browser.fork(), browser.oracle()
    copy = pickle.loads(pickle.dumps(twin))
    twin.step("search[cotton]")
    expected = browser.step(action).observation
    assert twin.step("back[]").observation != expected == copy.step(action).observation
    for env in (twin, copy):
        env.close()


def test_texts_are_escaped(browser: Shop) -> None:
    cells = (
        LineCell("</p><script>document.title = 'broken'</script>", PageAction("choose", "size: 9.5\" <i> & \\ '")),
        LineCell("&lt;b&gt; &amp; é 漢", PageAction("open", "<P1>"), True),
        LineCell("  two  spaces ", None),
    )
    page = ShopPage(
        (PageLine('<h2 onclick="x()">&quot;', cells), PageLine("", ()), PageLine("", cells[1:])), is_end=True
    )

    async def job(document: "Document") -> ShopPage:
        await document.set_content(render_page(page, "session"))
        return await read_page(document)

    assert browser_client(browser)._tab.run(job) == page


def test_only_this_machine_is_asked(browser: Shop) -> None:
    asked: list[str] = []
    browser.reset(options={"index": 2})

    async def listen(document: "Document") -> None:
        document.on("request", lambda request: asked.append(request.url))

    browser_client(browser)._tab.run(listen)
    while not browser.step(browser.oracle()).terminated:
        pass
    assert len(asked) >= 7
    assert {urlsplit(url).hostname for url in asked} == {"127.0.0.1"}


def test_a_lost_page_is_opened_again(browser: Shop) -> None:
    browser.reset(options={"index": 0})

    async def leave(document: "Document") -> None:
        await document.close()

    browser_client(browser)._tab.run(leave)
    assert browser.step("search[cotton]").observation.startswith("Results for: cotton")


def test_a_store_that_does_not_answer_makes_the_turn_invalid(browser: Shop) -> None:
    browser.reset(options={"index": 0})
    session = browser_client(browser)._session
    assert session is not None
    server().end(session)
    result = browser.step("search[cotton]")
    assert result.info["envgym"].ending is Ending.ERROR_ENV
    assert "The store answers 404 instead of a page." in result.info["envgym"].error
    assert browser.reset(options={"index": 0}).observation.endswith("Cart (0)")


def test_the_server_knows_its_sessions_alone(browser: Shop) -> None:
    import httpx

    visitor = server().begin(TextShop(0, 1500), ShopVisit())
    url = server().url(visitor)
    assert "Welcome" in httpx.get(url).text
    # A link cannot press a button, and a page that is not open offers nothing.
    assert "Welcome" in httpx.get(url, params={"act": "place_order[]"}).text
    assert httpx.post(url, data={"act": "add_to_cart[]"}).status_code == 303
    assert httpx.post(url, content=b"\xff" * 20_000).status_code == 413
    assert visitor.view.visit == ShopVisit()
    server().end(visitor)
    assert httpx.get(url).status_code == 404


def test_missing_browser_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_browser, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"web/shop-v0 with browser=True\); pip install 'envgym\[web\]'"):
        Shop(browser=True)
