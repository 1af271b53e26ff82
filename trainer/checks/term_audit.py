"""The audit of terms: every term of the objective reads some token of the first rows of its sources."""

import logging
from collections.abc import Sequence

from envgym.errors import RunError
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.learner.objective import Objective, Term

_log = logging.getLogger(__name__)


class TermAudit:
    """A record of the terms that have read a token."""

    def __init__(self) -> None:
        self._has_read: set[str] = set()
        self.resumed_at = 0
        """Train steps done when the run was resumed; from 1 the audit only logs: the first rows were checked before."""

    def check(self, objective: Objective, rows: Sequence[TrainRow], *, step: int, last: int) -> None:
        """Check that the terms read some of a step's rows, each in the first step that has rows of its sources.

        A term whose coefficient is 0 in this step is checked in a later step. A term that has read nothing by the last
        step is logged. A resumed run is not stopped, because a later step may lack such tokens by chance.

        Args:
            objective: of the step.
            rows: of the step.
            step: the train step, from 1.
            last: the last step of the run.

        Raises: RunError: a term reads no token of them, and does not state why it may be empty.
        """
        for term in objective.terms:
            if term.name in self._has_read or term.coef(step - 1) == 0:
                continue
            of_sources = [row for row in rows if row.id.source in term.sources]
            if any(any(term.mask_of(row)) for row in of_sources):
                self._has_read.add(term.name)
            elif of_sources and term.may_be_empty is None and self.resumed_at == 0:
                raise _reads_nothing(term, of_sources, step=step)
            elif step == last:
                _log.warning("objective term %s has read no token in this run", term.name)


def _reads_nothing(term: Term, rows: Sequence[TrainRow], *, step: int) -> RunError:
    origins = sorted({str(origin) for row in rows for origin in row.id.origins(len(row))})
    got = f"none of origin {', '.join(sorted(term.origins))} in {len(rows)} rows with {', '.join(origins)}"
    must = f"read some token of the first rows of {', '.join(sorted(term.sources))}"
    do = "correct its origins and sources, add what makes such tokens, or state in may_be_empty why there may be none"
    return RunError.of(f"objective term {term.name}", must, got, where=f"step {step}", do=do)
