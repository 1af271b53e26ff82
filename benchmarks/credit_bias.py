"""How far each credit's gradient is from the true one, on average over everything that can be sampled.

The environment is `tests.support.enumerable`: expectations are sums, so the figures have no sampling error.

Run: python -m benchmarks.credit_bias [--only turn_grpo sibling]. Prints one JSON line.
"""

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks._options import print_result, read_options
from envgym.config.plugins import Choice
from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.gae import GaeCredit
from envgym.trainer.methods.credit.gigpo import Gigpo
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards
from envgym.trainer.methods.credit.tree_rl import TreeRl
from envgym.trainer.methods.protocols import (
    CREDIT,
    CRITIC_VALUES,
    BatchCredit,
    Credit,
    CreditContext,
    CriticCredit,
    TrajectoryCredit,
    TrajectoryValues,
)
from tests.support.enumerable import LOGITS, Array, Enumerable, SampledGroup, expected_gradient, groups

NODE_CREDITS = ("planned", "planned_gae, decay 1", "planned_gae, decay 0.95")
"""Those that train every node once, `objective.shared_tokens: once`. A credit of a whole step sees one group here."""
WORLD = Enumerable(logits=LOGITS)
TRUTH = WORLD.true_gradient()


def reinforce(group: Group) -> tuple[TrajectoryCredit, ...]:
    return episode_credits(group.valid, episode_rewards(group))


def with_values(credit: CriticCredit, value: float) -> Credit:
    """Give a critic's method a critic that predicts `value` for everything."""

    def estimate(group: Group) -> tuple[TrajectoryCredit, ...]:
        values = [
            TrajectoryValues(trajectory=episode, values=((), *[(value,)] * (len(episode.path) - 1)))
            for episode in group.valid
        ]
        return tuple(credit.assign([group], CreditContext(scores={CRITIC_VALUES: values})))

    return estimate


def of_one_group(credit: BatchCredit) -> Credit:
    return lambda group: tuple(credit.assign([group], CreditContext()))


def methods() -> dict[str, Credit]:
    """Return every method with its default settings, and what a discount of 1 or an exponent changes."""
    without_critic: dict[str, Credit] = {"reinforce": reinforce}
    with_critic: dict[str, Credit] = {}
    for name in CREDIT.table:
        credit = CREDIT.build(Choice(name=name))
        if isinstance(credit, GaeCredit):
            for decay in (1.0, 0.95):
                with_critic[f"{name}, decay {decay:g}"] = with_values(CREDIT.load(name)(decay=decay), 0.3)
        elif isinstance(credit, Credit):
            without_critic[name] = credit
        elif name in NODE_CREDITS:
            without_critic[name] = of_one_group(credit)
    without_critic["gigpo, discount 1"] = Gigpo(discount=1.0)
    without_critic["tree_rl, shared 1"] = TreeRl(shared=1.0)
    return without_critic | with_critic


def searches() -> dict[str, Callable[[], list[SampledGroup]]]:
    return {
        "chains, G=2": lambda: groups(WORLD.chains(), 2),
        "chains, G=3": lambda: groups(WORLD.chains(), 3),
        "every turn twice": lambda: groups(WORLD.grown(lambda depth: 2), 1),
        "planned": lambda: groups(WORLD.grown(lambda depth: 2 if depth == 1 else 1), 2),
        "random_expand": lambda: groups(WORLD.expanded_at_random(), 2),
        "surprisal_fork": lambda: groups(WORLD.forked_at_surprise(), 2),
    }


def distance(gradient: Array) -> dict[str, float]:
    """Return |E g - truth| / |truth|, and the cosine between the two, which no scale changes."""
    norm, length = float(np.linalg.norm(TRUTH)), float(np.linalg.norm(gradient))
    cosine = float((gradient * TRUTH).sum()) / (norm * length) if length else 0.0
    return {"bias": float(np.linalg.norm(gradient - TRUTH)) / norm, "cosine": cosine}


def measure(only: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    chosen = {name: credit for name, credit in methods().items() if not only or name in only}
    table: dict[str, dict[str, dict[str, float]]] = {name: {} for name in chosen}
    for search, sample in searches().items():
        sampled = sample()
        for name, credit in chosen.items():
            table[name][search] = distance(expected_gradient(WORLD, credit, sampled, once=name in NODE_CREDITS))
    return table


def main() -> None:
    """Measure the methods, all of them by default, and print one line."""
    print_result("credit_bias", methods=measure(read_options(__doc__, only=()).only))


if __name__ == "__main__":
    main()
