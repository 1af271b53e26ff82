"""DUMP: the published scores, advantages by env, and a state that comes back."""

from pathlib import Path

import pytest

from envgym.trainer.methods.credit.outcome import DrGrpo
from envgym.trainer.methods.curricula.dump import Dump, advantage_size
from envgym.trainer.methods.protocols import EnvSupply, StepOutcome, TaskRequest
from tests.support.credit_trees import chain, group_of
from tests.support.graded import choose

ENVS = ["a", "b", "c"]


def seen() -> Dump:
    curriculum = Dump()
    counts = {"a": 400, "b": 200, "c": 40}
    means = {"a": 0.8, "b": 0.5, "c": 0.1}
    curriculum.restore({env: {"sizes": [means[env]] * 40, "episodes": counts[env]} for env in ENVS})
    return curriculum


def test_published_scores_and_probabilities() -> None:
    assert seen().scores(ENVS) == pytest.approx([0.97954, 0.753592, 0.661489], abs=1e-5)
    assert seen().probabilities(ENVS) == pytest.approx([0.872624, 0.091106, 0.03627], abs=1e-5)


def test_envs_are_drawn_alike_before_anything_is_known() -> None:
    assert Dump().probabilities(ENVS) == pytest.approx([1 / 3] * 3)
    supplies = [EnvSupply(env, weight, 5) for env, weight in zip(ENVS, (1.0, 5.0, 1.0), strict=True)]
    drawn = choose(Dump(), groups=600, supplies=supplies)
    counts = [sum(request.env == env for request in drawn) for env in ENVS]
    assert all(160 < count < 240 for count in counts)
    assert {request.index for request in drawn} == set(range(5))
    assert drawn == choose(Dump(), groups=600, supplies=supplies)
    assert drawn != choose(Dump(), step=1, groups=600, supplies=supplies)


def test_advantages_are_counted_by_env_and_what_did_not_train_is_0() -> None:
    curriculum = Dump()
    requests = [TaskRequest("a", 0, 2), TaskRequest("b", 0, 2)]
    trained = group_of(chain("t0", [1.0]), chain("t1", [0.0]))
    flat = group_of(chain("u0", [0.0]), chain("u1", [0.0]))
    credits = DrGrpo()(trained)  # .5 and -.5
    curriculum.observe(StepOutcome(step=1, requests=requests, groups=[trained, flat], credits=credits))
    # N = 4, n = 2: √(2 ln 5 / 3) = 1.035837
    assert curriculum.scores(["a", "b"]) == pytest.approx([0.5 + 1.035837, 1.035837], abs=1e-5)


def test_only_the_last_episodes_count_for_the_mean() -> None:
    curriculum = Dump(window=2)
    curriculum.restore({"a": {"sizes": [9.0, 0.2, 0.4], "episodes": 3}})
    assert curriculum.scores(["a"])[0] == pytest.approx(0.3 + (2 * 1.386294 / 4) ** 0.5, abs=1e-5)


def test_size_of_an_advantage_is_a_mean_over_sampled_tokens() -> None:
    credit, _ = DrGrpo()(group_of(chain("t0", [1.0, 0.0]), chain("t1", [0.0])))
    assert advantage_size(credit) == 0.5


def test_state_comes_back(tmp_path: Path) -> None:
    before, after = seen(), Dump()
    before.save(tmp_path)
    after.load(tmp_path)
    assert after.scores(ENVS) == before.scores(ENVS)
    supplies = [EnvSupply(env, 1.0, None) for env in ENVS]
    assert choose(after, supplies=supplies) == choose(before, supplies=supplies)
