"""Likeliest tokens in a run: recorded at every sampled token where they are asked for, and refused where none exist."""

from pathlib import Path

import pytest

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import Sampling
from envgym.core.segments import Origin, Segment
from envgym.episodes import trees_of
from envgym.errors import InvalidInput
from envgym.runs import RunDirectory
from envgym.trainer.train import train
from tests.trainer.test_recipes import settings


def sampled_segments(directory: Path) -> list[Segment]:
    """Return the segments that the policy sampled to train on, as version 0; evaluations ask for nothing."""
    nodes = [node for tree in trees_of(RunDirectory.open(directory).episodes([1])) for node in tree.nodes]
    return [s for node in nodes for s in node.edge.segments if s.origin is Origin.POLICY and s.policy_version == 0]


def test_run_records_what_it_asks_for_also_where_a_search_forks_inside_a_turn(tmp_path: Path) -> None:
    run = {"name": "top", "directory": str(tmp_path / "run"), "steps": 1, "trackers": []}
    train(settings("tree_rl", tmp_path, run=run, sampling={"top_logprobs": 3}))
    found = sampled_segments(tmp_path / "run")
    assert len(found) > 8
    for segment in found:
        assert segment.behavior_logprobs is not None
        assert segment.top_logprobs is not None
        for token, logprob, place in zip(
            segment.token_ids, segment.behavior_logprobs, segment.top_logprobs, strict=True
        ):
            assert len(place) == 3
            values = [value for _, value in place]
            assert values == sorted(values, reverse=True)
            # the sampled token is one of the likeliest, or less likely than all of them
            assert dict(place).get(token, logprob) == pytest.approx(logprob, abs=1e-6)
            assert token in dict(place) or logprob <= values[-1] + 1e-6


def test_policy_without_them_refuses_before_it_samples() -> None:
    with pytest.raises(InvalidInput, match=r"top_logprobs must be at most 0 for this policy, got 2 \(ScriptedPolicy\)"):
        ScriptedPolicy([]).check_sampling(Sampling(top_logprobs=2))
    with pytest.raises(InvalidInput, match="top_logprobs must be in range, got -1"):
        ScriptedPolicy([]).check_sampling(Sampling(top_logprobs=-1))
