"""The wall time of a run adds up over the processes that worked on it."""

import time
from pathlib import Path

import pytest

from envgym.errors import RunError
from envgym.runs.wall_time import WallClock, read_wall_time


def test_time_of_every_process_is_kept_and_that_of_this_one_grows(tmp_path: Path) -> None:
    assert read_wall_time(tmp_path) == ()
    first = WallClock(tmp_path, device="2 CPU cores", started=time.perf_counter() - 100)
    first.record()
    (before,) = read_wall_time(tmp_path)
    first.record()
    (after,) = read_wall_time(tmp_path)
    assert before.device == "2 CPU cores"
    assert 100 <= before.seconds <= after.seconds
    second = WallClock(tmp_path, device="a GPU", started=time.perf_counter() - 20)
    second.record()
    assert [item.device for item in read_wall_time(tmp_path)] == ["2 CPU cores", "a GPU"]
    assert read_wall_time(tmp_path)[0] == after
    assert read_wall_time(tmp_path)[1].seconds >= 20


def test_wall_time_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "wall_time.json").write_text('[{"device": "x"}]')
    with pytest.raises(
        RunError, match=r"run file must be as envgym wrote it, got KeyError: 'seconds' .*wall_time.json"
    ):
        read_wall_time(tmp_path)
