"""Turn-level GRPO: the return from each turn on, minus the mean of the other episodes' returns from that turn on."""

from typing import ClassVar

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.paths import GroupTree, discounted_returns, turn_of_nodes, turn_rewards
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit


class TurnGrpo(GroupCredit):
    """Leave one out, turn by turn: A_{i,t} = R_{i,t} - mean_{j != i} R_{j,t}, R_{j,t} = Σ_{k >= t} γ^{k-t} r_{j,k}.

    An episode that ended before turn t counts with R_{j,t} = 0: only so is the gradient unbiased when episodes
    differ in their number of turns. In a tree, episodes that hold the very node are no peers of it, for their returns
    depend on it; a node that every episode holds gets 0, as does a group of one episode. A turn that only one episode
    reaches does not. Without turn rewards before the last, episodes of equal length get RLOO's advantages.

    Source: own; the return-to-go form of RLOO (2402.14740). Dividing by a spread, as GRPO does, would bias it.
    """

    reads_turn_order: ClassVar[bool] = True
    discount: float = Field(default=1.0, ge=0, le=1)
    """Of rewards to come, per turn. Below 1 the gradient is biased towards what pays soon."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        group_tree = GroupTree(group=group)
        returns = [discounted_returns(turn_rewards(episode), self.discount) for episode in group.valid]

        def from_turn(number: int, turn: int) -> float:
            return returns[number][turn] if turn < len(returns[number]) else 0.0

        longest = max((len(of_turns) for of_turns in returns), default=0)
        totals = [sum(from_turn(number, turn) for number in range(len(returns))) for turn in range(longest)]
        credits: list[TrajectoryCredit] = []
        for number, (episode, path) in enumerate(zip(group.valid, group_tree.paths, strict=True)):
            advantages = [0.0] * len(path)
            for depth, (node, turn) in enumerate(zip(path, turn_of_nodes(episode), strict=True)):
                episodes_through = group_tree.episodes_through[node]
                peers = len(returns) - len(episodes_through)
                if turn >= 0 and peers:
                    of_peers = totals[turn] - sum(from_turn(through, turn) for through in episodes_through)
                    advantages[depth] = returns[number][turn] - of_peers / peers
            credits.append(TrajectoryCredit(trajectory=episode, advantages=tuple(advantages)))
        return tuple(credits)
