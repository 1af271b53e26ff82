"""SCRL's credit: answers to subproblems, each compared with the group's and credited by itself."""

from collections.abc import Sequence

from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Edge
from envgym.core.turns import Scored
from envgym.errors import InvalidInput
from envgym.trainer.methods.credit.paths import turn_credit, turn_rewards
from envgym.trainer.methods.credit.positions import by_position
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit


class Scrl(GroupCredit):
    """Standardise the rewards of every position by themselves: A_{i,k} = z(r_{i,k} | the group), z as in GRPO.

    Positions are the blocks of one message where the env pays them (components `p1` to `pK`, by the wrapper
    `subproblems`): A_k goes to the tokens of `<pk>...</pk>`; those outside the blocks get 0, as do all of an episode
    whose component `format` is 0. Else positions are turns, each with its own reward, compared among the episodes that
    have it; what a turn does for later ones is not credited. Episodes of one turn get GRPO's advantages.
    Source: 2605.22074 (SCRL), from its abstract and an exposition by others; positions that are turns are ours.
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode. Raises: InvalidInput: its tokens do not spell the blocks."""
        parts = [episode.reward.components if isinstance(episode.reward, Scored) else {} for episode in group.valid]
        count = max((sum(f"p{number}" in of for number in range(1, len(of) + 1)) for of in parts), default=0)
        if not count:
            advantages = by_position([turn_rewards(episode) for episode in group.valid])
            return tuple(map(turn_credit, group.valid, advantages))
        rewards = [[of.get(f"p{number}", 0.0) for number in range(1, count + 1)] for of in parts]
        return tuple(
            _block_credit(episode, advantages if of.get("format") else [])
            for episode, of, advantages in zip(group.valid, parts, by_position(rewards), strict=True)
        )


def _block_credit(episode: Trajectory, advantages: Sequence[float]) -> TrajectoryCredit:
    """Put an advantage on the tokens of each block; those of no block get 0."""
    edges = [_sampled_strings(episode.tree.nodes[node].edge) for node in episode.path]
    text = "".join(string for edge in edges for string in edge)
    spans = [_span(text, number, episode) for number in range(1, len(advantages) + 1)]
    by_edge: list[tuple[float, ...]] = []
    place = 0
    for edge in edges:
        values: list[float] = []
        for string in edge:
            end = place + len(string)
            inside = (a for a, (first, last) in zip(advantages, spans, strict=True) if place < last and end > first)
            values.append(next(inside, 0.0))
            place = end
        by_edge.append(tuple(values))
    return TrajectoryCredit(trajectory=episode, advantages=(0.0, *by_edge[1:]))


def _sampled_strings(edge: Edge) -> list[str]:
    return [string for segment in edge.segments if segment.trains for string in segment.token_strings]


def _span(text: str, number: int, episode: Trajectory) -> tuple[int, int]:
    first, last = text.find(f"<p{number}>"), text.find(f"</p{number}>")
    if first < 0 or last < 0:
        must, do = f"spell block <p{number}>", "sample with an engine that returns the text of its tokens"
        raise InvalidInput.of("sampled tokens", must, text[:60], where=f"tree {episode.tree.id}", do=do)
    return first, last + len(f"</p{number}>")
