"""The probes of a judge: the ten keys, the rate, and who is refused before a run begins."""

import asyncio
from collections.abc import Callable

import pytest

from envgym.core.tasks import Split, Task
from envgym.errors import PartyFailure, SettingsError
from envgym.trainer.methods.annotators.probed_judge import KEYS, ProbedJudge, accepted_keys
from tests.support.judges import DEAD, ScriptedJudge

TASKS = [Task(id=f"train/{n}", prompt=f"{n} + 1?", payload={"answer": str(n + 1)}, split=Split.TRAIN) for n in range(5)]


def probe(answer: Callable[[str], str | Exception], **fields: float) -> tuple[dict[str, float], ScriptedJudge]:
    judge = ScriptedJudge(answer)
    return asyncio.run(ProbedJudge.model_validate(fields).probe(TASKS, {"judge": judge})), judge


def key_of(prompt: str) -> str:
    return prompt.partition("[Assistant]\n")[2].partition("\n\nDoes")[0]


def test_there_are_ten_keys_and_all_are_put_to_the_judge_on_every_task() -> None:
    measured, judge = probe(lambda prompt: "NO")
    assert measured == {"false_positives": 0.0}
    assert len(set(KEYS)) == 10
    assert sorted(map(key_of, judge.prompts)) == sorted(KEYS * 4)
    assert len(set(judge.seeds)) == 40


def test_the_rate_is_the_share_of_accepted_keys_with_a_verdict() -> None:
    answers: dict[str, str | Exception] = {"Solution": "YES", ":": DEAD, ".": "well"}

    def answer(prompt: str) -> str | Exception:
        return answers.get(key_of(prompt), "NO")

    measured, _ = probe(answer, max_false_positives=0.2)
    assert measured == {"false_positives": pytest.approx(4 / 32)}  # 8 keys with a verdict, one of them accepted
    accepted = asyncio.run(accepted_keys(ProbedJudge(), TASKS[:2], {"judge": ScriptedJudge(answer)}))
    assert accepted["Solution"] == [True, True]
    assert accepted[":"] == accepted["."] == []


def test_a_judge_that_accepts_nothing_at_all_is_refused_with_the_worst_key() -> None:
    with pytest.raises(
        SettingsError, match=r"model judge must accept at most 5% of answers that hold nothing, got 10%"
    ):
        probe(lambda prompt: "YES" if key_of(prompt) == "解" else "NO")
    with pytest.raises(SettingsError, match="got 100%, most often of ' '"):
        probe(lambda prompt: "YES")


def test_a_judge_without_any_verdict_is_refused() -> None:
    with pytest.raises(SettingsError, match="model judge must give a verdict on some answers, got none"):
        probe(lambda prompt: PartyFailure("gone"))
