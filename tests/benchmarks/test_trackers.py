"""The benchmark of trackers, with the tracker that every environment has."""

from pathlib import Path

from benchmarks.trackers import measure


def test_a_step_has_a_time(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    figures = measure("tensorboard", tmp_path, num_metrics=3, num_steps=1)
    assert figures.keys() == {"tensorboard"}
    assert figures["tensorboard"] >= 0
