"""Which version of the weights sampled which token: spans, segments, rows, ages and corrections."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.loop.state import _sampled_segments
from envgym.agents.protocols import FinishReason, Generation, VersionSpan, first_spans, join_spans
from envgym.core.messages import Action, Observation
from envgym.core.serialize import segment_from_json, segment_to_json
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Edge
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.errors import PolicyFailure
from envgym.trainer.batch.rows import train_row
from envgym.trainer.methods.corrections.tis import Tis
from envgym.trainer.metrics.rollout import age_metrics
from tests.support.example_trees import start

SPANS = st.lists(st.builds(VersionSpan, st.integers(0, 3), st.integers(0, 4)), max_size=6)


def versions(spans: Sequence[VersionSpan]) -> list[int]:
    return list(chain.from_iterable([version] * count for version, count in spans))


@given(SPANS)
def test_joined_spans_say_the_same_of_every_token_in_the_fewest_spans(spans: list[VersionSpan]) -> None:
    joined = join_spans(spans)
    assert versions(joined) == versions(spans)
    assert all(span.num_tokens > 0 for span in joined)
    assert all(one.policy_version != other.policy_version for one, other in pairwise(joined))


@given(SPANS, st.integers(0, 20))
def test_first_spans_are_those_of_the_first_tokens(spans: list[VersionSpan], count: int) -> None:
    assert versions(first_spans(spans, count)) == versions(spans)[:count]


def mixed(*spans: tuple[int, int]) -> Generation:
    count = sum(number for _, number in spans)
    return Generation(
        token_ids=tuple(range(10, 10 + count)),
        behavior_logprobs=tuple(-0.1 * (place + 1) for place in range(count)),
        raw_logprobs=None,
        finish_reason=FinishReason.STOP,
        policy_version=min(version for version, _ in spans),
        version_spans=tuple(VersionSpan(*span) for span in spans),
    )


def test_a_turn_of_several_versions_is_a_segment_of_each() -> None:
    segments = _sampled_segments(mixed((3, 2), (4, 1)), ("a", "b", "c"))
    assert [(s.token_ids, s.token_strings, s.behavior_logprobs, s.policy_version) for s in segments] == [
        ((10, 11), ("a", "b"), (-0.1, -0.2), 3),
        ((12,), ("c",), (pytest.approx(-0.3),), 4),
    ]
    assert [segment_from_json(segment_to_json(segment)) for segment in segments] == list(segments)


def test_a_turn_of_one_version_is_one_segment() -> None:
    whole = replace(mixed((3, 3)), version_spans=())
    assert _sampled_segments(whole, ()) == _sampled_segments(mixed((3, 3)), ())


def test_spans_that_miss_tokens_are_a_policy_failure() -> None:
    wrong = replace(mixed((3, 2)), version_spans=(VersionSpan(3, 1),))
    with pytest.raises(PolicyFailure, match="must cover its 2 tokens, got 1"):
        _sampled_segments(wrong, ())


def test_ages_and_corrections_of_a_turn_of_several_versions_are_those_of_each_token() -> None:
    builder = start("mixed")
    outcome = TurnOutcome(action=Action(""), observation=Observation(""), reward=Scored(value=1.0))
    edge = Edge(segments=_sampled_segments(mixed((3, 2), (5, 1)), ()), ends_turn=True)
    builder.add(0, edge, outcome=outcome, ending=Ending.TERMINATED)
    tree = builder.freeze()
    row = Trajectory(tree=tree, leaf=tree.leaves[0]).rows[0]
    first = len(row) - 3
    versions = [segment.policy_version for segment in row.segments for _ in segment.token_ids]
    assert versions == [None] * first + [3, 3, 5]
    # step 6 trains on the weights of version 5: two tokens are 2 steps old, one is 0
    assert age_metrics([Group(key="g", trees=(tree,))], step=6) == {"staleness/mean": 4 / 3, "staleness/max": 2.0}
    trained = train_row(row, [1.0] * len(row))
    behavior_BT = torch.tensor([trained.behavior_logprobs], dtype=torch.float64)
    # the policy before the update gives every sampled token a probability twice that of the version that sampled it
    old_BT = behavior_BT + torch.log(torch.tensor(2.0, dtype=torch.float64))
    result = Tis(cap=3.0)(
        old_logprobs_BT=old_BT, behavior_logprobs_BT=behavior_BT, loss_mask_BT=torch.tensor([trained.loss_mask])
    )
    torch.testing.assert_close(result.weights_BT, torch.tensor([[0.0] * first + [2.0] * 3], dtype=torch.float64))
