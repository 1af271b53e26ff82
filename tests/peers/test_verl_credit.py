"""Our advantages equal those of verl's own estimators."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from envgym.core.messages import Action, Observation
from envgym.core.trajectory import Group, trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.trainer.batch.spread import token_advantages, token_targets
from envgym.trainer.methods.credit.gae import GaeToken
from envgym.trainer.methods.credit.gdpo import Gdpo
from envgym.trainer.methods.credit.outcome import DrGrpo, Grpo, Opo, Rloo
from envgym.trainer.methods.credit.reinforce_pp import ReinforcePlusPlus
from envgym.trainer.methods.protocols import CRITIC_VALUES, BatchCredit, Credit, CreditContext, TrajectoryValues
from tests.support import example_trees as cases
from tests.support.credit_trees import per_node

pytestmark = pytest.mark.peers

REWARDS = ((1.0, 0.0, 0.25, -0.5), (0.0, 0.0, 1.0), (0.3, 0.3), (2.0, -1.0, 0.5, 0.5, 0.1))
"""Of four groups."""
LENGTHS = ((3, 2, 4, 1), (1, 1, 2), (3, 3), (1, 2, 3, 4, 5))
"""Sampled tokens of each episode."""
WIDTH = 5


def our_groups() -> list[Group]:
    return [
        Group(
            key=f"g{number}",
            trees=tuple(
                cases.outcome_tree(f"t{member}", reward, tokens=length)
                for member, (reward, length) in enumerate(zip(rewards, lengths, strict=True))
            ),
        )
        for number, (rewards, lengths) in enumerate(zip(REWARDS, LENGTHS, strict=True))
    ]


def their_batch() -> tuple[Tensor, Tensor, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Return rewards at the last tokens [B, T], the mask [B, T] and the group of each row."""
    lengths = [length for group in LENGTHS for length in group]
    mask = (torch.arange(WIDTH)[None] < torch.tensor(lengths)[:, None]).double()
    rewards = torch.zeros_like(mask)
    rewards[range(len(lengths)), [length - 1 for length in lengths]] = torch.tensor(
        [reward for group in REWARDS for reward in group], dtype=torch.float64
    )
    return rewards, mask, np.repeat(np.arange(len(REWARDS)), [len(group) for group in REWARDS])


def first_token(advantages: Tensor) -> list[float]:
    return [float(number) for number in advantages[:, 0]]


def of_episodes(credit: Credit) -> list[float]:
    return [number for group in our_groups() for (number,) in per_node(credit(group))]


@pytest.mark.parametrize(
    "credit, name, options",
    [
        (Grpo(), "grpo", {}),
        (DrGrpo(), "grpo", {"norm_adv_by_std_in_grpo": False}),
        (Rloo(), "rloo", {}),
        (Opo(), "opo", {}),
    ],
)
def test_outcome_advantages_are_verl_s(core_algos: Any, credit: Credit, name: str, options: dict[str, bool]) -> None:
    rewards, mask, index = their_batch()
    theirs, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=rewards, response_mask=mask, index=index, **options
    )
    assert of_episodes(credit) == pytest.approx(first_token(theirs), abs=1e-6)


def test_a_lone_episode_has_advantage_zero_where_verl_gives_its_reward(core_algos: Any) -> None:
    """A raw reward is no advantage: it depends on where the env puts its zero."""
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        token_level_rewards=torch.tensor([[0.7]]), response_mask=torch.ones(1, 1), index=np.zeros(1)
    )
    assert theirs.item() == pytest.approx(0.7, abs=1e-5)
    assert per_node(Grpo()(cases.outcome_group(0.7))) == [[0.0]]


def of_batch(credit: BatchCredit, groups: Sequence[Group]) -> list[float]:
    return [number for (number,) in per_node(list(credit.assign(groups, CreditContext())))]


def test_reinforce_pp_whitens_over_tokens_as_verl_s_does(core_algos: Any) -> None:
    rewards, mask, index = their_batch()
    theirs, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        token_level_rewards=rewards, response_mask=mask, config=SimpleNamespace(gamma=1.0)
    )
    assert of_batch(ReinforcePlusPlus(), our_groups()) == pytest.approx(first_token(theirs), abs=1e-6)
    theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
        token_level_rewards=rewards, response_mask=mask, index=index
    )
    found = of_batch(ReinforcePlusPlus(baseline="group"), our_groups())
    assert found == pytest.approx(first_token(theirs), abs=1e-6)


COMPONENTS = ((1.0, 0.0, 0.0, 1.0, 0.5, 0.25), (0.1, 0.1, 0.0, 0.05, 0.0, 0.1))
"""Of six episodes, the first three of one group."""


def test_gdpo_is_verl_s_where_every_episode_has_one_token(core_algos: Any) -> None:
    """verl standardises the sum over tokens, so that there long episodes weigh more; ours over episodes."""
    pairs = list(zip(*COMPONENTS, strict=True))
    groups = [
        Group(key=f"g{first}", trees=tuple(of_components(f"t{n}", *pairs[n]) for n in range(first, first + 3)))
        for first in (0, 3)
    ]
    theirs, _ = core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(6, 1),
        response_mask=torch.ones(6, 1),
        index=np.repeat([0, 1], 3),
        config={"gdpo_reward_keys": ["answer", "format"], "gdpo_reward_weights": [1.0, 0.5]},
        non_tensor_batch=dict(zip(("answer", "format"), COMPONENTS, strict=True)),
        batch={"prompts": torch.zeros(6, 1), "attention_mask": torch.ones(6, 2).long()},
    )
    assert of_batch(Gdpo(weights={"format": 0.5}), groups) == pytest.approx(first_token(theirs), abs=1e-5)


def of_components(name: str, answer: float, form: float) -> Tree:
    reward = Scored(value=answer + form, components={"answer": answer, "format": form})
    outcome = TurnOutcome(action=Action("done"), observation=Observation(), reward=reward)
    builder = cases.start(name)
    builder.add(builder.root, cases.turn(cases.policy(10)), outcome=outcome, ending=Ending.TERMINATED)
    return builder.freeze()


@pytest.mark.parametrize("discount, decay", [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.7, 0.0)])
def test_gae_over_tokens_skips_observations_as_verl_s_does(core_algos: Any, discount: float, decay: float) -> None:
    tree = cases.start("two turns")
    one = tree.add(tree.root, cases.turn(cases.policy(10, 11, 12), cases.tool(30, 31)), outcome=cases.paid(0.5))
    tree.add(one, cases.turn(cases.policy(13, 14)), outcome=cases.paid(-1.0), ending=Ending.TERMINATED)
    (episode,) = trajectories(tree.freeze())
    values = (0.1, -0.2, 0.3, 9.0, -7.0, 0.5, 0.6)
    mask = torch.tensor([[1.0, 1, 1, 0, 0, 1, 1]])
    advantages, returns = core_algos.compute_gae_advantage_return(
        token_level_rewards=torch.tensor([[0, 0, 0.5, 0, 0, 0, -1.0]]),
        values=torch.tensor([values]),
        response_mask=mask,
        gamma=discount,
        lam=decay,
    )
    said = TrajectoryValues(trajectory=episode, values=((), values[:3], values[5:]))
    groups, context = [Group(key="g", trees=(episode.tree,))], CreditContext(scores={CRITIC_VALUES: [said]})
    (found,) = GaeToken(discount=discount, decay=decay).assign(groups, context)
    row = episode.rows[0]
    trained = mask[0].bool().tolist()
    assert chosen(token_targets(found, row)[4:], trained) == pytest.approx(
        chosen(returns[0].tolist(), trained), abs=1e-6
    )
    # verl whitens its advantages over the batch, as we do where it is asked for
    (white,) = GaeToken(discount=discount, decay=decay, whiten=True).assign(groups, context)
    theirs = chosen(advantages[0].tolist(), trained)
    assert chosen(token_advantages(white, row)[4:], trained) == pytest.approx(theirs, abs=1e-5)
    # before that they are the returns less the values
    raw = (returns - torch.tensor([values]))[0].tolist()
    assert chosen(token_advantages(found, row)[4:], trained) == pytest.approx(chosen(raw, trained), abs=1e-6)


def chosen(numbers: Sequence[float | None], mask: Sequence[bool]) -> list[float]:
    return [number for number, is_trained in zip(numbers, mask, strict=True) if is_trained and number is not None]
