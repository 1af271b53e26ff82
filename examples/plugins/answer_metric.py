"""A metric: what is measured of episodes, in training and evaluation alike.

    envgym train run.yaml --set 'rollout.metrics=[examples/plugins/answer_metric.py:RepeatedAnswers]'

A metric gets episodes and returns numbers by name; they are written as `metric/<name>`, in training every step and in
an evaluation (`evaluation.metrics`) per env.
"""

from collections.abc import Sequence

from envgym.config.settings import Settings
from envgym.core.trajectory import Trajectory


class RepeatedAnswers(Settings):
    """Share of turns whose action is that of an earlier turn of the same episode."""

    ignore_case: bool = True
    """Whether answers that differ in case only are the same."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Return the share, under the name `repeated_answers`."""
        num_turns = num_repeated = 0
        for episode in episodes:
            seen: set[str] = set()
            for turn in episode.turns:
                if turn.outcome is None:
                    continue
                text = str(turn.outcome.action)
                text = text.lower() if self.ignore_case else text
                num_turns += 1
                num_repeated += text in seen
                seen.add(text)
        return {"repeated_answers": num_repeated / max(num_turns, 1)}
