"""A judge that is tried with words that answer nothing before a run trusts it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import Field

from envgym.core.tasks import Task
from envgym.errors import InfrastructureError, SettingsError
from envgym.trainer.methods.annotators.judge import Judge, read_verdict
from envgym.verifiers.llm_judge import PROBES

KEYS: Final = tuple(PROBES["published"])
"""Answers that hold nothing, and that many judges accept."""


class ProbedJudge(Judge):
    """The annotator `judge`, refused if it accepts answers without content. Source: 2507.08794.

    Before the run begins every key is put to the judge as the answer to each of `tasks` train tasks. Its false-positive
    rate is the share of the keys that it accepts, among those that it gives a verdict on; accepted is what gets more
    than the lowest verdict's value. The metric is `annotate/NAME_false_positives`.
    """

    tasks: int = Field(default=4, ge=1, le=64)
    """Train tasks on which the judge is tried."""
    keys: tuple[str, ...] = Field(default=KEYS, min_length=1)
    """Answers that no judge may accept."""
    max_false_positives: float = Field(default=0.05, ge=0, le=1)
    """Largest false-positive rate of a judge that a run trusts."""

    async def probe(self, tasks: Sequence[Task], models: Mapping[str, object]) -> dict[str, float]:
        """Return the false-positive rate. Raises: SettingsError: it is too high, or the judge gave no verdict."""
        accepted = await accepted_keys(self, tasks[: self.tasks], models, self.keys)
        where, do = f"annotate {self.name}", "choose another judge, or correct the template"
        answered = [verdicts for verdicts in accepted.values() if verdicts]
        if not answered:
            raise SettingsError.of(f"model {self.model}", "give a verdict on some answers", "none", where=where, do=do)
        rate = sum(map(sum, answered)) / sum(map(len, answered))
        if rate > self.max_false_positives:
            worst = max(accepted, key=lambda key: sum(accepted[key]))
            got = f"{rate:.0%}, most often of {worst!r}"
            must = f"accept at most {self.max_false_positives:.0%} of answers that hold nothing"
            raise SettingsError.of(f"model {self.model}", must, got, where=where, do=do)
        return {"false_positives": rate}


async def accepted_keys(
    judge: Judge, tasks: Sequence[Task], models: Mapping[str, object], keys: Sequence[str] = KEYS
) -> dict[str, list[bool]]:
    """Return for each key whether the judge accepted it, for every task on which it gave a verdict."""
    lowest = min(judge.verdicts.values())

    async def accepts(key: str, task: Task) -> bool | None:
        try:
            prompt = judge.fill(task, key, f"[Turn 1]\n{key}")
            return read_verdict(await judge.ask(models, prompt, "probe", key, task.key), judge.verdicts) > lowest
        except InfrastructureError:
            return None

    pairs = [(key, task) for key in keys for task in tasks]
    verdicts = await asyncio.gather(*[accepts(key, task) for key, task in pairs])
    by_key: dict[str, list[bool]] = {key: [] for key in keys}
    for (key, _), accepted in zip(pairs, verdicts, strict=True):
        if accepted is not None:
            by_key[key].append(accepted)
    return by_key
