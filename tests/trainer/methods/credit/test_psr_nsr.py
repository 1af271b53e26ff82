"""W-REINFORCE, PSR and NSR: the constants, and which episodes train at all."""

from envgym.trainer.batch.build import build_batch
from envgym.trainer.methods.credit.psr_nsr import PsrNsr
from tests.support.credit_trees import batch_advantages
from tests.support.example_trees import outcome_group


def test_w_reinforce_pulls_with_a_tenth_and_pushes_with_one() -> None:
    assert batch_advantages(PsrNsr(), [1, 0, None], [1]) == [0.1, -1.0, 0.1]


def test_sign_that_weighs_nothing_leaves_the_batch() -> None:
    groups = [outcome_group(1.0, 0.0), outcome_group(1.0), outcome_group(0.0)]
    pulled = build_batch(groups, PsrNsr(positive=1, negative=0), once=False)
    pushed = build_batch(groups, PsrNsr(positive=0), once=False)
    assert [row.advantages[-1] for row in pulled.rows] == [1.0, 1.0]
    assert [row.advantages[-1] for row in pushed.rows] == [-1.0, -1.0]
    assert pushed.credits[0].trajectory.tree is groups[0].trees[1]


def test_episode_is_correct_from_success_at_on() -> None:
    assert batch_advantages(PsrNsr(success_at=0.5), [0.5, 0.4]) == [0.1, -1.0]
    assert batch_advantages(PsrNsr(positive=0, negative=0), [0.5, 0.4]) == []
