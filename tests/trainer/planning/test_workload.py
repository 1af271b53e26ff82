"""Micro-batches of a plan are those that the learner makes of such rows."""

from itertools import count

import pytest
import torch

from envgym.trainer.batch.rows import TrainRow, packed_batches, padded_batches
from envgym.trainer.learner.train_step import minibatches
from envgym.trainer.methods.row_ids import RowId
from envgym.trainer.planning.workload import Packing, Workload
from tests.support.toy_plan import settings_of


def rows_of(groups: int, size: int, *, prompt: int, sampled: int) -> list[TrainRow]:
    """Return rows that share the prompt of their group, and nothing else."""
    ids, rows = count(), []
    for group in range(groups):
        shared = [next(ids) for _ in range(prompt)]
        for _ in range(size):
            tokens = (*shared, *(next(ids) for _ in range(sampled)))
            mask, zeros = (False,) * prompt + (True,) * sampled, (0.0,) * (prompt + sampled)
            row = TrainRow(
                token_ids=tokens,
                loss_mask=mask,
                advantages=zeros,
                behavior_logprobs=zeros,
                weights=(1.0,) * len(tokens),
                id=RowId(group=group),
            )
            rows.append(row)
    return rows


def planned_and_made(
    *, groups: int, size: int, parts: int, limit: int, is_coupled: bool = False, is_packed: bool = True
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return tokens, number and largest of the micro-batches: of the plan, and of the learner."""
    settings = settings_of(
        rollout={"groups": groups, "group_size": size},
        optim={"minibatches": parts, "micro_batch_tokens": limit, "packing": is_packed},
    )
    workload = Workload(turns=1, prompt_tokens=64, turn_tokens=24)
    plan = Packing.of(settings, workload, is_coupled=is_coupled)
    rows, pack = rows_of(groups, size, prompt=64, sampled=24), packed_batches if is_packed else padded_batches
    sizes = [
        batch.num_tokens
        for indices in minibatches(rows, parts, whole_groups=is_coupled)
        for batch in pack(rows, indices, limit, torch.device("cpu"))
    ]
    return (plan.tokens, plan.batches, plan.largest), (sum(sizes), len(sizes), max(sizes))


def test_every_minibatch_repeats_the_prompt_of_each_group() -> None:
    """Of 16 groups of 8 rows, each of 4 minibatches has 2 rows of each group: 16 * (256 + 2 * 96) = 7,168 tokens."""
    settings = settings_of(
        rollout={"groups": 16, "group_size": 8}, optim={"minibatches": 4, "micro_batch_tokens": 8192}
    )
    workload = Workload(turns=1, prompt_tokens=256, turn_tokens=96)
    plan = Packing.of(settings, workload, is_coupled=False)
    assert (plan.tokens, plan.batches, plan.largest) == (28_672, 4, 7168)
    assert plan.pairs == 4 * 16 * (256**2 / 2 + 2 * 96 * (256 + 96 / 2))
    whole = Packing.of(settings, workload, is_coupled=True)
    assert (whole.tokens, whole.batches, whole.largest) == (16 * (256 + 8 * 96), 4, 4 * 1024)


@pytest.mark.parametrize(
    "groups, size, parts, limit",
    [
        (16, 8, 4, 2048),  # the example above, at a quarter of its lengths
        (16, 8, 1, 2048),
        (4, 6, 4, 9999),  # 1.5 rows of a group on average
        (8, 2, 4, 9999),  # a minibatch has a row of every second group
        (2, 2, 9, 9999),  # more minibatches than rows
        (4, 8, 2, 112),  # a pack has 2 of the 4 rows that a minibatch has of a group
    ],
)
def test_micro_batches_are_those_of_the_learner(groups: int, size: int, parts: int, limit: int) -> None:
    plan, made = planned_and_made(groups=groups, size=size, parts=parts, limit=limit)
    assert plan == made


@pytest.mark.parametrize("parts, limit", [(4, 1024), (3, 300), (9, 9999)])
def test_minibatches_of_a_coupled_objective_have_whole_groups(parts: int, limit: int) -> None:
    plan, made = planned_and_made(groups=6, size=4, parts=parts, limit=limit, is_coupled=True)
    assert plan == made
    assert plan[0] == 6 * (64 + 4 * 24), "every prompt once"


def test_rows_that_are_not_packed_repeat_their_prompt_anyway() -> None:
    plan, made = planned_and_made(groups=4, size=4, parts=2, limit=400, is_packed=False)
    assert plan == made == (16 * 88, 4, 4 * 88)
