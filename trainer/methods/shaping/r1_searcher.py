"""R1-Searcher's rewards: for searching, for the form of the answer, and for few searches where it is right."""

import statistics
from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group, Trajectory
from envgym.core.turns import Scored, reaches
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.shaping.rewards import with_final_rewards
from envgym.verifiers.extract import Tagged

_in_answer_tags = Tagged()


class R1Searcher(Settings):
    """Pay an episode, at its end, r = answer R + retrieval [n >= 1] + format [w] - penalty [not w] + b.

    R is what the env paid, n the number of calls of a search tool, and w whether the episode is well written: each of
    `tags` once, an answer of at most `max_answer_words` words, no call that was malformed or refused. b goes to the
    right episodes (R of at least `success_at`) of the group with the fewest calls: min(s, `bonus`), where s is the
    population standard deviation of the right episodes' calls.

    The defaults are the first stage of R1-Searcher, which does not pay for answers; the second has answer=1,
    retrieval=0, format=0, penalty=2. R1-Searcher++ has one stage, the second with bonus=2.

    Source: 2503.05592 (its text; the authors' script also pays for answers in the first stage, and takes 1 or 2 off in
    the second), 2505.17005 (from an exposition by others: that b grows with the deviation and is capped at 2 is known,
    its exact form is ours).
    """

    answer: float = Field(default=0.0, ge=0)
    """Weight of what the env paid."""
    retrieval: float = Field(default=0.5, ge=0)
    """For at least one call of a search tool."""
    format: float = Field(default=0.5, ge=0)
    """For an episode that is well written."""
    penalty: float = Field(default=0.0, ge=0)
    """Taken off where it is not."""
    bonus: float = Field(default=0.0, ge=0)
    """Largest bonus for few calls; 0: none."""
    tools: tuple[str, ...] = Field(default=("search",), min_length=1)
    """Names of the search tools."""
    tags: tuple[str, ...] = ("<answer>", "</answer>")
    """What an episode must say exactly once each; add `</think>` for a model that thinks in tags."""
    max_answer_words: int = Field(default=10, ge=1)
    """Longest answer between `<answer>` and `</answer>`, where `tags` ask for them."""
    success_at: float = 1.0
    """What the env pays for a right answer, for the bonus."""

    def __call__(self, group: Group) -> Group:
        bonuses = self._bonuses(group)
        rewards: dict[str, dict[int, Scored]] = {}
        for episode, bonus in zip(group.valid, bonuses, strict=True):
            rewards.setdefault(episode.tree.id, {})[episode.leaf] = self._reward(episode, bonus)
        return replace(group, trees=tuple(with_final_rewards(tree, rewards.get(tree.id, {})) for tree in group.trees))

    def _reward(self, episode: Trajectory, bonus: float) -> Scored:
        paid = episode.reward
        assert isinstance(paid, Scored), "of a valid episode"
        is_well_written = self.is_well_written(episode)
        parts: Mapping[str, float] = {
            "retrieval": self.retrieval * (self.num_searches(episode) > 0),
            "format": self.format if is_well_written else -self.penalty,
            "few_searches": bonus,
        }
        return Scored(value=self.answer * paid.value + sum(parts.values()), components={**paid.components, **parts})

    def num_searches(self, episode: Trajectory) -> int:
        """Return how often the episode called a search tool."""
        outcomes = [turn.outcome for turn in episode.turns if turn.outcome is not None]
        return sum(call.name in self.tools for outcome in outcomes for call in outcome.action.tool_calls)

    def is_well_written(self, episode: Trajectory) -> bool:
        """Return whether the tags, the answer's length and all calls are as they must be."""
        outcomes = [turn.outcome for turn in episode.turns if turn.outcome is not None]
        if not outcomes or any(outcome.tool_errors for outcome in outcomes):
            return False
        text = "".join(outcome.action for outcome in outcomes)
        answer = _in_answer_tags(outcomes[-1].action).answer or ""
        return all(text.count(tag) == 1 for tag in self.tags) and len(answer.split()) <= self.max_answer_words

    def _bonuses(self, group: Group) -> list[float]:
        searches = [self.num_searches(episode) for episode in group.valid]
        is_right = [reaches(reward, self.success_at) for reward in episode_rewards(group)]
        of_right = [number for number, right in zip(searches, is_right, strict=True) if right]
        bonus = min(statistics.pstdev(of_right), self.bonus) if of_right else 0.0
        fewest = min(of_right, default=0)
        return [bonus * (right and number == fewest) for number, right in zip(searches, is_right, strict=True)]
