"""A curriculum with a state of its own: tasks that went wrong come again, with a hint.

    envgym train run.yaml --set curriculum.name=examples/plugins/mistakes.py:Mistakes --set curriculum.share=0.25

`choose` returns the groups of a step; an equal context and an equal state give equal groups. `observe` sees what they
came to, and what it returns is shown as `curriculum/NAME`. `save` and `load` are all that a checkpoint needs.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field, PrivateAttr

from envgym.config.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, StepOutcome, TaskRequest

HINT = "You have been wrong about this before: take your time."


class Mistakes(Settings):
    """Ask again for the tasks whose last group earned least; all others are drawn as by `uniform`."""

    share: float = Field(default=0.5, ge=0, le=1)
    """Of a step's groups, those for which a task that went wrong is asked again."""
    _rewards: dict[tuple[str, int], float] = PrivateAttr(default_factory=dict)
    """(env, index) -> mean reward of its last group."""

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        """Return the groups of a train step."""
        drawn = Uniform().choose(context)
        worst = sorted(self._rewards, key=lambda task: self._rewards[task])[: int(self.share * context.num_groups)]
        again = [TaskRequest(env, index, context.group_size, hint=HINT) for env, index in worst]
        return [*again, *drawn[len(again) :]]

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Remember how every group went."""
        for request, group in outcome.pairs:
            if rewards := episode_rewards(group):
                self._rewards[request.env, request.index] = sum(rewards) / len(rewards)
        return {"tasks": float(len(self._rewards))}

    def save(self, folder: Path) -> None:
        """Write the state."""
        rows = [[env, index, reward] for (env, index), reward in self._rewards.items()]
        (folder / "rewards.json").write_text(json.dumps(rows), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote."""
        rows = json.loads((folder / "rewards.json").read_text(encoding="utf-8"))
        self._rewards = {(env, index): reward for env, index, reward in rows}
