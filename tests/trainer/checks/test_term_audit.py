"""Every term reads some token of the first rows of its sources, whatever its loss; or the run stops with a sentence."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from envgym.core.segments import Origin
from envgym.core.tree import Source
from envgym.errors import RunError
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.checks.term_audit import TermAudit
from envgym.trainer.learner.objective import Objective, Term
from envgym.trainer.learner.settings import ObjectiveSettings
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import NegativeLogLikelihood, PpoClip, TokenSum
from envgym.trainer.methods.schedules import Linear
from tests.support.plugins import LOSSES
from tests.trainer.learner.test_learner import build_model, build_rows

SAMPLED = build_rows(build_model())[:2]
SHOWN = [replace(row, id=replace(row.id, source=Source.DEMONSTRATION)) for row in SAMPLED]


def objective(**term: Any) -> Objective:
    """Return an objective with a further term called `extra`, whose aggregation suits every loss."""
    extra = Term(**{"name": "extra", "loss": NegativeLogLikelihood(), "aggregation": TokenSum(), **term})
    settings = ObjectiveSettings()
    return Objective(loss=PpoClip(), correction=NoCorrection(), settings=settings, temperature=1.0, further=(extra,))


def check(goal: Objective, *steps: Sequence[TrainRow], last: int = 9) -> None:
    audit = TermAudit()
    for step, rows in enumerate(steps, start=1):
        audit.check(goal, rows, step=step, last=last)


@pytest.mark.parametrize("name", LOSSES)
def test_a_term_of_any_loss_reads_its_tokens_or_stops_the_run(name: str) -> None:
    loss = LOSSES[name]()
    check(objective(loss=loss), SAMPLED)
    check(objective(loss=loss, sources=frozenset({Source.DEMONSTRATION})), [*SAMPLED, *SHOWN])
    for origin in (Origin.DEMONSTRATION, Origin.TOOL):
        with pytest.raises(RunError, match="objective term extra must read some token of the first rows of POLICY"):
            check(objective(loss=loss, origins=frozenset({origin})), SAMPLED)


def test_a_term_waits_for_the_first_rows_of_its_sources() -> None:
    shown = frozenset({Source.DEMONSTRATION})
    check(objective(sources=shown), SAMPLED, [], [*SAMPLED, *SHOWN])
    with pytest.raises(RunError, match=r"first rows of DEMONSTRATION, got none of origin TOOL .* \(step 2\)"):
        check(objective(sources=shown, origins=frozenset({Origin.TOOL})), SAMPLED, [*SAMPLED, *SHOWN])


def test_a_term_is_checked_once_its_coefficient_is_not_0() -> None:
    goal = objective(origins=frozenset({Origin.TOOL}), coef=Linear(start=0.0, end=1.0, steps=1))
    check(goal, SAMPLED)
    with pytest.raises(RunError, match=r"\(step 2\)"):
        check(goal, SAMPLED, SAMPLED)


def test_a_term_that_states_why_it_may_be_empty_goes_on_and_is_logged_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    goal = objective(origins=frozenset({Origin.TOOL}), may_be_empty="tools are seldom called")
    check(goal, SAMPLED, SAMPLED, last=3)
    assert not caplog.records
    check(goal, SAMPLED, SAMPLED, last=2)
    assert caplog.messages == ["objective term extra has read no token in this run"]


def test_a_term_that_has_read_once_may_miss_later() -> None:
    check(objective(sources=frozenset({Source.DEMONSTRATION})), SHOWN, SAMPLED, last=2)


def test_a_resumed_run_is_not_stopped_by_a_step_without_tokens_of_a_term(caplog: pytest.LogCaptureFixture) -> None:
    audit, goal = TermAudit(), objective(origins=frozenset({Origin.TOOL}))
    audit.resumed_at = 4
    audit.check(goal, SAMPLED, step=5, last=6)
    assert not caplog.records
    audit.check(goal, SAMPLED, step=6, last=6)
    assert caplog.messages == ["objective term extra has read no token in this run"]
