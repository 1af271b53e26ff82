"""The comparison with TRL's trainer: what is counted, and what both sides begin with."""

import argparse
from pathlib import Path

import pytest

from benchmarks._talks import ENV_ID
from benchmarks._trl_side import phases
from benchmarks.trl_step import Case, Ours, Step, compare, system_text
from envgym import registry


def step(seconds: float, new_tokens: int = 100) -> Step:
    return Step(seconds, {"generate": seconds / 2}, new_tokens)


def test_the_medians_are_compared_by_step_and_by_token() -> None:
    found = compare([step(1.0), step(2.0), step(9.0)], [step(6.0, 50), step(4.0, 50), step(8.0, 50)])
    assert found["speedup"] == 3.0  # 6 / 2
    assert found["speedup_per_token"] == pytest.approx(6.0)  # (6 / 50) / (2 / 100)


def test_phases_lie_inside_each_other_and_add_up_to_the_step() -> None:
    found = phases(10.0, {"generate": 4.0, "prepared": 5.0, "forward": 1.5, "trained": 9.0})
    expected = {"generate": 4.0, "score": 1.0, "forward": 1.5, "backward": 2.5, "update": 1.0, "other": 0.0}
    assert found == expected
    assert sum(found.values()) == 10.0


def test_a_step_samples_every_turn_of_the_group() -> None:
    assert Case(turns=3, tokens=32, group=8).new_tokens == 768


def test_the_system_message_is_cut_out_of_a_prompt() -> None:
    assert system_text("<|im_start|>system\nBe\nkind.<|im_end|>\n<|im_start|>user\n?<|im_end|>\n") == "Be\nkind."


def test_a_step_of_ours_is_timed_by_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registrations", dict(registry._registrations))  # it is nobody else's
    registry.register(ENV_ID, "benchmarks._talks:Ledger")
    case = Case(turns=3, tokens=8, group=4)
    side = Ours(case, argparse.Namespace(steps=1, model="tiny", threads=1), tmp_path)
    try:
        found = side.step()
    finally:
        side.close()
    assert found.new_tokens == case.new_tokens
    assert min(found.phases.values()) >= 0
    assert sum(found.phases.values()) == pytest.approx(found.seconds)
    assert found.phases["backward"] > 0 < found.phases["update"]
