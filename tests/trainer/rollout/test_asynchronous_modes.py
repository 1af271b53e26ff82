"""Every way of collecting, under delays and failures: nothing crashes, and every record says what happened.

A few steps of modes that overlap with learning or leave stragglers; with ENVGYM_ASYNC_STEPS=30 so many steps of all.
"""

import itertools
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from envgym.core.trajectory import trajectories
from envgym.core.turns import Invalid
from envgym.errors import SettingsError
from tests.trainer.rollout.unreliable_runs import GROUPS, SIZE, logprob_gaps, run, run_settings

OVERSAMPLING = 1.5
STEPS = int(os.environ.get("ENVGYM_ASYNC_STEPS", "0"))
SEARCHES: dict[str, dict[str, Any]] = {  # of the settings
    "chain": {"name": "chain"},
    "tree": {"name": "surprisal_fork", "trees": 2, "nodes": 1, "branches": 1},
}


class Mode(NamedTuple):
    """One way of collecting."""

    staleness: int
    deterministic: bool
    stragglers: str
    search: str

    @property
    def rollout(self) -> dict[str, Any]:
        """The section of the settings; some episodes of every step are stragglers where any may be."""
        section = {"staleness": self.staleness, "deterministic": self.deterministic, "stragglers": self.stragglers}
        oversampled = {"min_finished_share": 0.6, "oversampling": OVERSAMPLING}
        return {**section, **oversampled} if self.stragglers in ("abort", "carry") else section

    @property
    def num_begun(self) -> int:
        return math.ceil(GROUPS * OVERSAMPLING) if self.stragglers in ("abort", "carry") else GROUPS

    @property
    def refusal(self) -> str | None:
        """The sentence that refuses the mode; None: it runs."""
        if self.stragglers != "wait" and self.deterministic:
            return "rollout.deterministic must be false where stragglers are not waited for, got True"
        if self.stragglers in ("carry", "window") and not self.staleness:
            return "rollout.staleness must be at least 1 to carry over, got 0"
        return None


STRAGGLERS = ("wait", "abort", "carry", "window")
ALL = [Mode(*mode) for mode in itertools.product((0, 1, 4), (True, False), STRAGGLERS, SEARCHES)]
RISKY = [
    Mode(1, False, "wait", "tree"),
    Mode(0, False, "abort", "chain"),
    Mode(1, False, "carry", "chain"),
    Mode(1, False, "window", "tree"),
]


def label(mode: Mode) -> str:
    timing = "deterministic" if mode.deterministic else "free"
    return f"{mode.search}-{timing}-staleness{mode.staleness}-{mode.stragglers}"


@pytest.mark.timeout(3600 if STEPS else 180)
@pytest.mark.parametrize("mode", [mode for mode in (ALL if STEPS else RISKY) if mode.refusal is None], ids=label)
def test_a_run_under_delays_and_failures_records_the_truth(mode: Mode, tmp_path: Path) -> None:
    steps = STEPS or 3
    record = run(run_settings(tmp_path / "run", steps=steps, search=SEARCHES[mode.search], rollout=mode.rollout))

    gaps = logprob_gaps(record)
    assert max(gaps.own) < 1e-3, "every token carries the version that sampled it"
    assert sum(gap > 1e-2 for gap in gaps.before) >= len(gaps.before) / 2, "so another version would have been noticed"

    assert [row["step"] for row in record.metrics] == list(range(1, steps + 1))
    carried = 0.0
    for step, (metrics, trees) in enumerate(zip(record.metrics, record.trees, strict=True), start=1):
        parts = [part for tree in trees for node in tree.nodes for part in node.edge.segments]
        ages = {step - 1 - part.policy_version for part in parts if part.policy_version is not None}
        exact = min(step - 1, mode.staleness)
        assert ages <= ({exact} if mode.deterministic else set(range(exact + 1)))
        left = metrics.get("collect/replaced", 0.0) + metrics.get("collect/too_old", 0.0)
        assert metrics["rollout/groups"] == mode.num_begun + carried - metrics.get("collect/carried", 0.0) + left
        carried = metrics.get("collect/carried", 0.0)
        dropped = sum(value for name, value in metrics.items() if name.startswith("dropped/"))
        assert metrics["rows/collected"] == pytest.approx(metrics["rows/trained"] + dropped)

        episodes = [(tree.id.rpartition("/")[0], episode) for tree in trees for episode in trajectories(tree)]
        missing = {key: SIZE - sum(of == key for of, _ in episodes) for key in {of for of, _ in episodes}}
        short = {tree.id.rpartition("/")[0] for tree in trees if (root := tree.nodes[0].stats) and root.shortfall}
        assert len(missing) == metrics["rollout/groups"]
        assert all(number == 0 or key in short for key, number in missing.items())
        assert all(episode.reward.reason for _, episode in episodes if isinstance(episode.reward, Invalid))


@pytest.mark.parametrize("mode", [mode for mode in ALL if mode.refusal is not None], ids=label)
def test_what_cannot_be_collected_so_is_refused_in_a_sentence(mode: Mode, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=mode.refusal):
        run_settings(tmp_path, steps=1, search=SEARCHES[mode.search], rollout=mode.rollout)
