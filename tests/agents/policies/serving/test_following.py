"""A policy that follows: it uses a server only while that has the weights which another process names."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.serving.following import FollowingPolicy
from envgym.agents.policies.serving.link import ExpectedModel, ServerState
from envgym.agents.policies.serving.weights_state import WeightsState
from envgym.errors import InvalidInput, PolicyFailure
from tests.agents.policies.serving.running import Served, changed, serving
from tests.agents.policies.serving.test_client import QUICK, ask, client
from tests.agents.policies.small_models import llama, request

FIRST = WeightsState(0)
FAST = replace(QUICK, watch_s=0.02, wait_s=5.0)


def following(*urls: str, state: WeightsState = FIRST, **limits: Any) -> Any:  # closing of a policy
    policy = FollowingPolicy(
        urls,
        transport="files",
        state=state,
        expected=ExpectedModel(),
        token=None,
        limits=replace(FAST, **limits),
        servers=None,
    )
    return closing(policy)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(llama()) as server:
        yield server


def test_a_policy_that_follows_samples_what_the_one_that_updates_samples(served: Served, tmp_path: Path) -> None:
    asked = [request((1, 2, 3), seed=5)]
    with client(tmp_path, served.http.url) as leader, following(served.http.url) as policy:
        assert ask(policy, asked)[0].token_ids == ask(leader, asked)[0].token_ids
        leader.update_weights(changed(llama(), 3.0), 1)
        assert leader.weights_state.version == 1
        policy.follow(leader.weights_state)
        (generation,) = ask(policy, asked)
        assert generation == ask(leader, asked)[0]
        assert (generation.policy_version, policy.version) == (1, 1)
        assert served._policy.version == 1  # nobody has named it otherwise


def test_a_server_with_other_weights_is_not_used(served: Served, tmp_path: Path) -> None:
    with client(tmp_path, served.http.url) as leader:
        leader.update_weights(changed(llama(), 3.0), 1)
        state = leader.weights_state
    with following(served.http.url, state=state) as policy:
        assert ask(policy, [request((1, 2))])[0].policy_version == 1
    for other in (WeightsState(2), state._replace(digest="other"), WeightsState(1, "other")):
        with following(served.http.url, state=other, wait_s=0.1, retries=0) as policy:
            with pytest.raises(PolicyFailure, match="no policy server is up"):
                ask(policy, [request((1, 2))])
            policy.follow(state._replace(revision=1))  # what counts is the state at the first request
            policy._loop.run(policy._fleet.look_at(policy._fleet.links[0]))
            assert ask(policy, [request((1, 2))])[0].policy_version == 1
    with pytest.raises(InvalidInput, match="a policy server must be up within"):
        following("http://127.0.0.1:1", wait_s=0.1)
    assert served.weights.hold is None  # it was left as it was


def test_a_server_of_older_weights_is_broken_for_the_policy(served: Served) -> None:
    with following(served.http.url, retries=0) as policy:
        (link,) = policy._fleet.links
        policy.follow(WeightsState(1, "new", servers=(link.started,)))
        with pytest.raises(PolicyFailure, match="it sampled from version 0, but has version 1"):
            ask(policy, [request((1, 2))])
        assert link.state is ServerState.BROKEN


def test_weights_of_the_same_version_are_compared_again(served: Served, tmp_path: Path) -> None:
    with client(tmp_path, served.http.url) as leader, following(served.http.url, wait_s=0.2, retries=0) as policy:
        policy.follow(WeightsState(0, "other"))  # which the server was never brought
        with pytest.raises(PolicyFailure, match=r"no policy server is up: .* must have the weights of version 0"):
            ask(policy, [request((1, 2))])
        leader.update_weights(changed(llama(), 3.0), 0)
        policy.follow(leader.weights_state)
        policy._loop.run(policy._fleet.look_at(policy._fleet.links[0]))
        assert ask(policy, [request((1, 2))])[0].policy_version == 0


def test_a_server_that_the_run_does_not_name_is_compared_before_its_next_use(served: Served, tmp_path: Path) -> None:
    with client(tmp_path, served.http.url) as leader, following(served.http.url, wait_s=0.2, retries=0) as policy:
        leader.update_weights(changed(llama(), 3.0), 1)
        policy.follow(WeightsState(1, "digest of other weights"))
        with pytest.raises(PolicyFailure, match=r"must have the weights of version 1, got other checksums"):
            ask(policy, [request((1, 2))])
        policy.follow(leader.weights_state._replace(servers=()))
        policy._loop.run(policy._fleet.look_at(policy._fleet.links[0]))
        assert ask(policy, [request((1, 2))])[0].policy_version == 1


def test_a_server_whose_update_has_failed_for_the_run_is_not_used(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong() -> dict[str, str]:
        return {"weight": "of another update"}

    with serving(llama()) as other:
        urls = served.http.url, other.http.url
        with client(tmp_path, *urls) as leader, following(*urls) as policy:
            monkeypatch.setattr(other.weights, "compute_digests", wrong)
            leader.update_weights(changed(llama(), 3.0), 1)
            assert [link.state for link in leader._fleet.links] == [ServerState.UP, ServerState.BROKEN]
            monkeypatch.undo()  # its checksums are right now, and it is paused as the update left it
            policy.follow(leader.weights_state)
            good, bad = policy._fleet.links
            policy._loop.run(policy._fleet.look_at(bad))
            assert (good.state, bad.state) == (ServerState.UP, ServerState.DOWN)
            assert "must sample, got a weight update that has not ended" in bad.reason
            answers = ask(policy, [request((1, 2), seed=seed) for seed in range(6)])
            assert {generation.policy_version for generation in answers} == {1}


def test_a_policy_that_follows_updates_nothing(served: Served) -> None:
    with following(served.http.url) as policy:
        assert not policy.accepts_weights
        with pytest.raises(PolicyFailure, match="the run's process updates the policy servers"):
            policy.update_weights(changed(llama(), 3.0), 1)
