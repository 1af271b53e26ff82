"""What the soak run calls a leak."""

import numpy as np
import pytest

from scripts.soak import GROWTH, MOST, faults_of, invalid_share, slopes

STEPS = 100


def growing(**per_step: float) -> dict[int, dict[str, float]]:
    """Return readings of each step that grow steadily, with noise; what warms up in the first half does not count."""
    noise = np.random.default_rng(0).normal(scale=0.3, size=STEPS + 1)
    return {
        step: {
            name.replace("_", "/"): 50 * min(step / STEPS, 0.5) * 2 + rate * step + noise[step]
            for name, rate in per_step.items()
        }
        for step in range(1, STEPS + 1)
    }


def test_the_slope_is_that_of_the_second_half() -> None:
    found = slopes(growing(run_memory=2.0, run_sockets=0.0), STEPS)
    assert found["run/memory"].value == pytest.approx(2.0, abs=0.02)
    assert found["run/sockets"].value == pytest.approx(0.0, abs=0.02)


def test_a_file_in_ten_steps_is_a_leak_and_what_is_written_for_good_is_none() -> None:
    found = growing(run_files=0.1, run_memory=0.9 * GROWTH["memory"], disk_all=5.0)
    (told,) = faults_of(found, slopes(found, STEPS))
    assert told.startswith("run/files grows by 0.")


def test_connections_may_be_kept_up_to_a_number() -> None:
    most = float(MOST["sockets"])
    found = {step: {"run/sockets": min(step * 10.0, most)} for step in range(1, STEPS + 1)}
    assert not faults_of(found, slopes(found, STEPS))
    found[STEPS]["run/sockets"] = most + 1
    (told,) = faults_of(found, slopes(found, STEPS))
    assert told == f"run/sockets reaches {most + 1:.0f}, and may be {most:.0f}"


def test_what_goes_up_and_down_widely_is_no_leak() -> None:
    counts = np.random.default_rng(0).integers(0, 130, size=STEPS + 1)
    readings = {step: {"sessions": float(counts[step])} for step in range(1, STEPS + 1)}
    assert not faults_of(readings, slopes(readings, STEPS))


def test_the_share_of_invalid_episodes_is_that_of_all_steps() -> None:
    rows = [{"rollout/episodes": 8, "rollout/invalid": 0}, {"rollout/episodes": 4, "rollout/invalid": 4}]
    assert invalid_share(rows) == 0.25
