"""The mask audit: silent for rows as they were sampled, loud for every planted fault."""

import asyncio
from dataclasses import replace

import pytest

from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Policy, Sampling
from envgym.core.trajectory import trajectories
from envgym.core.tree import Source, Tree
from envgym.errors import InvalidInput, RunError
from envgym.trainer.batch.rows import TrainRow, train_rows
from envgym.trainer.checks.mask_audit import AuditedPolicy, MaskAudit
from envgym.trainer.methods.credit.outcome import episode_credits
from tests.agents.policies.small_models import llama
from tests.support.example_trees import outcome_tree

# Prompt 1 2, turn 7 8 9, the tool says 3 4, turn 7 5; a sibling parts from the first turn behind 7 and samples 6.
TURNS = {(1, 2): (7, 8, 9), (1, 2, 7, 8, 9, 3, 4): (7, 5), (1, 2, 7): (6,)}
CHAIN = TrainRow(
    token_ids=(1, 2, 7, 8, 9, 3, 4, 7, 5),
    loss_mask=(False, False, True, True, True, False, False, True, True),
    advantages=(1.0,) * 9,
    behavior_logprobs=(0.0,) * 9,
    weights=(1.0,) * 9,
)
SIBLING = replace(CHAIN, token_ids=(1, 2, 7, 6), loss_mask=(False, False, True, True))


@pytest.fixture
def record() -> MaskAudit:
    audit = MaskAudit()
    policy = AuditedPolicy(ScriptedPolicy(lambda request: TURNS[request.token_ids]), audit.record)
    for context in TURNS:
        asyncio.run(policy.generate(GenerateRequest(token_ids=context, sampling=Sampling(), seed=0)))
    return audit


def test_rows_as_they_were_sampled_pass(record: MaskAudit) -> None:
    # 7 8 9 and 7 5 of the chain, 7 6 of its sibling, nothing of the row without a mask.
    assert record.check([CHAIN, SIBLING, replace(CHAIN, loss_mask=(False,) * 9)], step=1) == 5 + 2 + 0


@pytest.mark.parametrize(
    "fault, changes, place",
    [
        ("the mask covers what the tool said", {"loss_mask": (False, False, True, True, True, True, *[False] * 3)}, 5),
        ("the mask is off by one", {"loss_mask": (False, True, True, True, *[False] * 5)}, 1),
        ("the second turn was tokenised again", {"token_ids": (1, 2, 7, 8, 9, 3, 4, 75, 5)}, 7),
        ("the context was rewritten below it", {"token_ids": (1, 2, 7, 8, 9, 3, 3, 7, 5)}, 7),
        ("a turn of another context", {"token_ids": (1, 1, 7, 8, 9, 3, 4, 7, 5)}, 2),
    ],
)
def test_a_planted_fault_stops_the_run(record: MaskAudit, fault: str, changes: dict[str, object], place: int) -> None:
    wrong = replace(CHAIN, **changes)  # type: ignore[arg-type]  # fields of the row, by name
    with pytest.raises(
        RunError, match=rf"must be sampled by the policy .* at position {place} \(mask audit, step 3, row 1"
    ):
        record.check([CHAIN, wrong], step=3)


@pytest.mark.parametrize(
    "fault, places, cut",
    [
        ("the last token of the first turn", [2, 3, 7, 8], "2 to 3"),
        ("the first token of the second turn", [2, 3, 4, 8], "8 to 8"),
        ("the middle of the first turn", [2, 4, 7, 8], "2 to 2"),
    ],
)
def test_a_turn_that_trains_in_part_stops_the_run(record: MaskAudit, fault: str, places: list[int], cut: str) -> None:
    wrong = replace(CHAIN, loss_mask=tuple(place in places for place in range(9)))
    with pytest.raises(
        RunError, match=rf"must be whole turns, got a part of one, positions {cut} \(mask audit, step 3, row 0"
    ):
        record.check([wrong], step=3)


def declared_row(source: Source) -> tuple[Tree, TrainRow]:
    """Return a tree of a source, and the row of its first episode."""
    tree = replace(outcome_tree("declared", 1.0), source=source)
    (row, *_) = train_rows(episode_credits(trajectories(tree)[:1], [1.0]), once=False)
    return tree, row


@pytest.mark.parametrize("source", [Source.REPLAY, Source.DEMONSTRATION, Source.TEACHER])
def test_rows_of_another_source_train_where_they_were_declared(source: Source) -> None:
    audit = MaskAudit()
    tree, row = declared_row(source)
    with pytest.raises(RunError, match=f"a row of source {source} must be one that was declared"):
        audit.check([row], step=1)
    audit.declare(tree)
    assert audit.check([row], step=1) == sum(row.loss_mask)
    audit.begin_step()
    with pytest.raises(RunError, match="must be one that was declared"):
        audit.check([row], step=2)


@pytest.mark.parametrize("fault", ["other tokens", "a wider mask", "another source"])
def test_what_was_declared_trains_as_it_is(fault: str) -> None:
    audit = MaskAudit()
    tree, row = declared_row(Source.REPLAY)
    audit.declare(tree)
    wrong = {
        "other tokens": replace(row, token_ids=(row.token_ids[0] + 1, *row.token_ids[1:])),
        "a wider mask": replace(row, loss_mask=(False, *[True] * (len(row) - 1))),
        "another source": replace(row, id=replace(row.id, source=Source.DEMONSTRATION)),
    }[fault]
    assert wrong != row
    with pytest.raises(RunError, match="must be one that was declared"):
        audit.check([wrong], step=1)


def test_a_demonstration_cannot_pass_as_a_sample() -> None:
    audit = MaskAudit()
    tree, row = declared_row(Source.DEMONSTRATION)
    audit.declare(tree)
    with pytest.raises(RunError, match="must be sampled by the policy"):
        audit.check([replace(row, id=replace(row.id, source=Source.POLICY))], step=1)
    with pytest.raises(InvalidInput, match="must not be POLICY"):
        audit.declare(replace(tree, source=Source.POLICY))


def test_what_was_sampled_before_is_forgotten_when_a_step_begins(record: MaskAudit) -> None:
    record.begin_step()
    with pytest.raises(RunError, match="got 5 others"):
        record.check([CHAIN], step=2)


def test_everything_else_is_the_policys() -> None:
    policy: Policy = AuditedPolicy(ScriptedPolicy([]), MaskAudit().record)
    policy.set_version(4)
    assert policy.version == 4
    assert asyncio.run(policy.compute_logprobs([(1, 2)])) == [(0.0, 0.0)]
    policy.sleep()
    policy.wake()
    shared = TransformersPolicy(llama(), shares_weights=True)
    with AuditedPolicy(shared, MaskAudit().record).pause(7):
        assert shared.version == 0
    assert shared.version == 7
