"""`search/qa-v0`: every format is read, what supports an answer is ticked off, and nothing but the answer pays."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.envs.episodes import conformance

pytest.importorskip("bm25s")

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split
from envgym.core.turns import Scored
from envgym.envs.search._qa import context_documents, read_answers, supporting_titles
from envgym.envs.search.qa import OpenQa
from envgym.errors import InvalidInput
from envgym.parsing import tool_call_action

Row = dict[str, Any]  # a row of a data set

FACTS = [["Ada", 0], ["Turin", 1], ["Ada", 1]]
CONTEXT = [
    ["Ada", ["Ada was born in Turin.", "She wrote."]],
    ["Turin", ["Turin is a city.", "It lies in Italy."]],
    ["Rome", []],
]
HOTPOT: Row = {
    "_id": "5a",
    "question": "In which country was Ada born?",
    "answer": "Italy",
    "supporting_facts": FACTS,
    "context": CONTEXT,
}
HOTPOT_HUB: Row = {
    "id": "5a",
    "question": "In which country was Ada born?",
    "answer": "Italy",
    "supporting_facts": {"title": ["Ada", "Turin"], "sent_id": [0, 1]},
    "context": {
        "title": ["Ada", "Turin"],
        "sentences": [["Ada was born in Turin.", "She wrote."], ["Turin is a city.", "It lies in Italy."]],
    },
}
MUSIQUE: Row = {
    "id": "2hop__1",
    "question": "In which country was Ada born?",
    "answer": "Italy",
    "answer_aliases": ["Italia", "Italy"],
    "paragraphs": [
        {"idx": 0, "title": "Ada", "paragraph_text": "Ada was born in Turin.", "is_supporting": True},
        {"idx": 1, "title": "Rome", "paragraph_text": "Rome is a city.", "is_supporting": False},
    ],
}


@pytest.mark.parametrize(
    "row, answers, titles, pages",
    [
        ({"question": "who?", "answer": ["Ada", "Ada Lovelace"]}, ["Ada", "Ada Lovelace"], [], []),
        ({"id": "1", "question": "who?", "golden_answers": ["Ada", " "]}, ["Ada"], [], []),
        ({"question": "who?", "answer": {"value": "Ada", "aliases": ["A. L.", "Ada"]}}, ["Ada", "A. L."], [], []),
        ({"Question": "How many?", "Answer": 3}, ["3"], [], []),
        (HOTPOT, ["Italy"], ["Ada", "Turin"], ["Ada", "Turin"]),
        (HOTPOT_HUB, ["Italy"], ["Ada", "Turin"], ["Ada", "Turin"]),
        (MUSIQUE, ["Italy", "Italia"], ["Ada"], ["Ada", "Rome"]),
        ({"question": "hidden?", "answer": None}, [], [], []),
    ],
)
def test_every_format_is_read(row: Row, answers: list[str], titles: list[str], pages: list[str]) -> None:
    assert read_answers(row) == answers
    assert supporting_titles(row) == titles
    assert [page.id for page in context_documents([row, row])] == pages


def test_pages_of_one_title_are_kept_apart() -> None:
    rows: list[Row] = [{"context": [["Ada", ["One."]]]}, {"context": [["Ada", ["Two.", "Three."]]]}]
    assert [(page.id, page.text) for page in context_documents(rows)] == [("Ada", "One."), ("Ada (2)", "Two.\nThree.")]


def hotpot(number: int) -> Row:
    """Write a question of two hops; every page is of use to one question."""
    person, city, country = f"Person{number}", f"City{number}", f"Country{number}"
    context = [[person, [f"{person} writes.", f"{person} was born in {city}."]], [city, [f"{city} lies in {country}."]]]
    facts = [[person, 1], [city, 0]]
    return {"question": f"Where was {person} born", "answer": country, "supporting_facts": facts, "context": context}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("qa")
    path = folder / "hotpot.jsonl"
    path.write_text("\n".join(json.dumps(hotpot(number)) for number in range(60)))
    TestQa.env_kwargs = {"data": str(path), "corpus": "context", "evidence_weight": 0.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVGYM_CACHE", str(folder / "cache"))
        yield str(path)


TestQa = conformance("search/qa-v0", num_tasks=5)


def test_oracle_finds_and_opens_what_supports_the_answer(data: str) -> None:
    env = OpenQa(data=data, corpus="context", evidence_weight=0.5)
    assert sum(env.tasks.size(split) or 0 for split in Split) == 60
    task = env.tasks.task(Split.TEST, 0)
    assert task.prompt.endswith(" born?")
    episode = play(env, oracle_of(env), seed=0, task=task)
    end = episode.turns[-1].reward
    assert isinstance(end, Scored)
    assert (end.value, end.components, len(episode.turns)) == (1.0, {"answer": 1.0, "evidence": 1.0}, 3)


@pytest.mark.parametrize(
    "said, score",
    [
        ("<answer>the {}.</answer>", 1.0),
        ("{}", 1.0),
        ("It is {}", 0.0),
        ("", 0.0),
        ("<answer>{}</answer><answer>Rome</answer>", 0.0),
    ],
)
def test_right_words_pay_and_unread_evidence_does_not(data: str, said: str, score: float) -> None:
    env = OpenQa(data=data, corpus="context", evidence_weight=0.4)
    task = env.tasks.task(Split.TRAIN, 0)
    answers = task.payload["answers"]
    assert isinstance(answers, list)
    env.reset(options={"task": task})
    assert env.step(said.format(answers[0])).reward == pytest.approx(0.6 * score)
    env.reset(options={"task": task})
    opened = task.prompt.split()[2]
    env.step(tool_call_action("open", page=opened))
    assert env.step(said.format(answers[0])).reward == pytest.approx(0.8 * score)  # 1 of 2 pages: 0.6 + 0.4 / 2


@pytest.mark.parametrize("text_score", ["exact", "f1"])
@pytest.mark.parametrize(
    "key, said, score",
    [("A", "<answer>A</answer>", 1.0), ("A", "<answer>the</answer>", 0.0), ("+", "+", 1.0), ("+", "...", 0.0)],
)
def test_an_answer_that_is_an_article_or_a_sign_is_compared_as_it_is(
    tmp_path: Path, text_score: str, key: str, said: str, score: float
) -> None:
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Which?", "answer": key}))
    (tmp_path / "wiki.jsonl").write_text('{"id": "1", "contents": "Ada\\nShe wrote."}')
    env = OpenQa(data=str(tmp_path / "questions.jsonl"), corpus=str(tmp_path / "wiki.jsonl"), text_score=text_score)
    split = next(split for split in Split if env.tasks.size(split))
    env.reset(options={"split": split, "index": 0})
    assert env.step(said).reward == score


@pytest.mark.parametrize("text_score", ["exact", "f1"])
def test_with_take_last_the_last_marked_answer_counts(data: str, text_score: str) -> None:
    rewards = []
    for take in ("last", "only"):
        env = OpenQa(data=data, corpus="context", text_score=text_score, take=take)
        task = env.tasks.task(Split.TRAIN, 0)
        answers = task.payload["answers"]
        assert isinstance(answers, list)
        env.reset(options={"task": task})
        rewards.append(env.step(f"<answer>Rome</answer>, no: <answer>{answers[0]}</answer>").reward)
    assert rewards == [1.0, 0.0]


def test_an_official_split_wins_and_hidden_answers_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"train": tmp_path / "a.jsonl", "test": tmp_path / "b.parquet"}
    files["train"].write_text("\n".join(json.dumps(hotpot(number)) for number in range(3)))
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"question": "hidden?", "answer": None}, {"question": "Who?", "answer": "Ada"}]
    parquet.write_table(pa.Table.from_pylist(rows), files["test"])
    (tmp_path / "wiki.jsonl").write_text('{"id": "1", "contents": "Ada\\nShe wrote."}')
    data = {name: str(path) for name, path in files.items()}
    env = OpenQa(data=data, corpus=str(tmp_path / "wiki.jsonl"), text_score="f1")
    assert [env.tasks.size(split) for split in Split] == [3, 1]
    assert f"1 of 5 rows of {data} are left out: no answer (1)." in caplog.text
    assert env.chance_score == 1.0  # one test question: its answer is always right
    env.reset(options={"split": "test", "index": 0})
    assert env.step("<answer>Ada Lovelace</answer>").reward == pytest.approx(2 / 3)  # 1 of 2 words, 1 of 1


def test_a_saved_data_set_is_read_through_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([HOTPOT_HUB]).save_to_disk(str(tmp_path / "hotpot"))
    env = OpenQa(data=str(tmp_path / "hotpot"), corpus="context")
    split = next(split for split in Split if env.tasks.size(split))
    assert env.tasks.task(split, 0).payload["titles"] == ["Ada", "Turin"]


@pytest.mark.parametrize(
    "kwargs, told",
    [
        ({}, "data and one of corpus and retriever_url must be given, got data=None"),
        ({"data": "x.jsonl"}, "data and one of corpus and retriever_url must be given"),
        ({"data": "x.jsonl", "corpus": "context"}, "source must be an existing file"),
        ({"data": "x.jsonl", "corpus": "none.jsonl"}, "corpus must be a JSONL file"),
        ({"data": "x.jsonl", "corpus": "context", "text_score": "bleu"}, "text_score must be a known name"),
        ({"data": "x.jsonl", "corpus": "context", "evidence_weight": -1}, "evidence_weight must lie in [0, 1)"),
    ],
)
def test_what_cannot_be_asked_is_refused(kwargs: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        envgym.make("search/qa-v0", **kwargs)
    assert told in str(caught.value)
