"""Search, open, find: what is shown, what it costs, and what is said to a bad call."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("bm25s")

from envgym.authoring import ListTasks
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.search._browsing import BrowsingEnv, BrowsingLimits, BrowsingState
from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.retrieval import Bm25, Cached, Document, Retriever
from envgym.retrieval.base import Hit
from envgym.retrieval.corpus import corpus_at

PAGES = [
    Document(
        id="lake/chad", title="Lake Chad", text="A lake.\nDepth: 11 m, a shallow lake.\nCountries: Chad, Niger.\nFish."
    ),
    Document(id="lake/baikal", title="Lake Baikal", text="Depth: 1,642 m\nCountries: Russia"),
]


class Lakes(BrowsingEnv):
    """One question over two pages."""

    tasks = ListTasks([Task(id="t", prompt="How deep?", payload={"answer": "11"}, split=Split.TRAIN)])

    def __init__(self, retriever: Retriever, limits: BrowsingLimits) -> None:
        super().__init__(max_turns=50)
        self.browse(retriever, limits)
        self.shown: list[tuple[str, list[int], bool]] = []

    def begin(self, task: Task) -> str:
        self.state = BrowsingState()
        return task.prompt

    def respond(self, action: Action) -> Reply:
        return Reply(terminated=True)

    def note(self, document: Document, lines: Iterator[int], *, is_opened: bool) -> None:  # type: ignore[override]
        self.shown.append((document.id, list(lines), is_opened))


Say = Callable[..., str]


@pytest.fixture
def lakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lakes:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    env = Lakes(
        Cached(Bm25(corpus_at("lakes", PAGES))),
        BrowsingLimits(searches=3, pages=3, results=1, result_chars=40, page_chars=40),
    )
    env.reset(seed=0)
    return env


def test_a_result_shows_the_best_lines_and_an_opened_page_goes_on_where_it_stopped(lakes: Lakes) -> None:
    seen = [
        str(lakes.step(action).observation)
        for action in (
            tool_call_action("search", query="How shallow is Lake Chad?"),
            tool_call_action("open", page="lake/chad"),
            tool_call_action("open", page=" lake/chad ", line=4),
            tool_call_action("find_in_page", page="lake/chad", text="niger chad"),
        )
    ]
    assert seen == [
        "1. lake/chad (Lake Chad)\n   2: Depth: 11 m, a shallow lake.",
        "lake/chad (Lake Chad), lines 1 to 2 of 4:\n1: A lake.\n2: Depth: 11 m, a shallow lake.\nOpen line 3 to go on.",
        "lake/chad (Lake Chad), lines 4 to 4 of 4:\n4: Fish.",
        "lake/chad (Lake Chad):\n3: Countries: Chad, Niger.",
    ]
    assert lakes.shown == [
        ("lake/chad", [1], False),
        ("lake/chad", [0, 1], True),
        ("lake/chad", [3], True),
        ("lake/chad", [2], True),
    ]


def test_a_short_page_is_shown_as_a_whole(lakes: Lakes) -> None:
    lakes.step(tool_call_action("search", query="How deep is Lake Baikal?"))
    assert lakes.shown == [("lake/baikal", [0, 1], False)]


def test_budgets_end_and_refused_calls_cost_nothing_but_turns(lakes: Lakes) -> None:
    refused = tool_call_action("search", query="")
    for _ in range(5):
        lakes.step(refused)
    for query in ("lake", "lake", "zebra"):
        told = lakes.step(tool_call_action("search", query=query))
    assert str(told.observation) == "No page holds any of these words."
    assert "The budget of 3 searches is used up" in lakes.step(tool_call_action("search", query="lake")).observation
    for _ in range(3):
        told = lakes.step(tool_call_action("find_in_page", page="lake/chad", text="zebra"))
    assert str(told.observation) == "No line of lake/chad holds 'zebra'."
    assert "The budget of 3 pages is used up" in lakes.step(tool_call_action("open", page="lake/chad")).observation
    retriever = lakes.retriever
    assert isinstance(retriever, Cached)
    assert retriever.num_asked == 2  # "lake" twice is asked once


@pytest.mark.parametrize(
    "tool, arguments, said",
    [
        ("search", {"query": " \n"}, "query must hold a word, got '' (search); name what you look for."),
        ("search", {"query": "a" * 100_000}, "query must have at most 1000 characters, got 100000 characters"),
        ("search", {"query": 7}, "query"),
        ("search", {}, "query"),
        ("open", {"page": "lake/como"}, "There is no page 'lake/como'; take an id from the search results"),
        ("open", {"page": "x" * 100_000}, "There is no page 'xxx"),
        ("open", {"page": ""}, "There is no page ''"),
        ("open", {"page": "lake/chad", "line": 5}, "line must be 1 to 4, got 5: lake/chad has 4 lines."),
        ("open", {"page": "lake/chad", "line": -1}, "line must be 1 to 4, got -1"),
        ("find_in_page", {"page": "lake/chad", "text": ""}, "text must have 1 to 1000 characters, got 0"),
        ("find_in_page", {"page": "lake/chad", "text": "a" * 100_000}, "text must have 1 to 1000 characters"),
        ("browse", {"url": "http://x"}, "There is no tool 'browse'"),
    ],
)
def test_a_bad_call_gets_a_short_answer(lakes: Lakes, tool: str, arguments: dict[str, int | str], said: str) -> None:
    result = lakes.step(tool_call_action(tool, **arguments))
    assert str(result.observation).startswith(said) or (said == "query" and "query" in result.observation)
    assert len(result.observation) < 400
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, False)


class Away:
    """A retriever whose server is gone, and which knows no ids."""

    blocking = True

    def __init__(self) -> None:
        self.is_away = False

    def search(self, query: str, count: int) -> list[Hit]:
        if self.is_away:
            raise ToolInfraFailure("gone")
        return [Hit(document=PAGES[1], score=1.0)]

    def find(self, document_id: str) -> Document | None:
        return None


def test_what_was_found_can_be_opened_without_the_server_and_a_lost_server_makes_the_episode_invalid() -> None:
    retriever = Away()
    env = Lakes(retriever, BrowsingLimits())
    assert env.blocking
    env.reset(seed=0)
    assert "There is no page" in env.step(tool_call_action("open", page="lake/baikal")).observation
    env.step(tool_call_action("search", query="deep"))
    twin = env.fork()
    assert "1: Depth: 1,642 m" in env.step(tool_call_action("open", page="lake/baikal")).observation
    assert "1: Depth: 1,642 m" in twin.step(tool_call_action("open", page="lake/baikal")).observation
    retriever.is_away = True
    record = env.step(tool_call_action("search", query="deep")).info["envgym"]
    assert record.ending is Ending.ERROR_TOOL_INFRA


@pytest.mark.parametrize("budget", [{"searches": 0}, {"results": 21}, {"page_chars": 10**6}])
def test_a_budget_out_of_range_is_refused(budget: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=f"{next(iter(budget))} must be 1 to "):
        BrowsingLimits(**budget)
