"""A run that goes on with other settings: it is the run that was longer from the start, and its history says so."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envgym.errors import RunError
from envgym.run_trust import is_trusted
from envgym.runs import RunDirectory
from envgym.trainer.train import train
from tests.support.tiny_runs import step_metrics, tiny_settings


def test_extended_run_is_the_longer_run(tmp_path: Path) -> None:
    longer = tmp_path / "longer"
    train(tiny_settings(longer, run={"steps": 3}))
    extended = tmp_path / "extended"
    train(tiny_settings(extended, run={"steps": 2}))
    result = train(tiny_settings(extended, run={"steps": 3, "keep_checkpoints": 3}), resume=True)
    assert result.steps == 3
    assert step_metrics(extended) == step_metrics(longer)
    (line,) = (extended / "history.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 2, "changed": {"run.keep_checkpoints": [2, 3], "run.steps": [2, 3]}}
    assert RunDirectory.open(extended).config["run"]["steps"] == 3
    assert is_trusted(extended), "it is still this user's own"

    kept = (extended / "config.json").read_bytes()
    with pytest.raises(RunError, match=r"run.steps must be at least the 3 that are done, got 1 \("):
        train(tiny_settings(extended, run={"steps": 1, "keep_checkpoints": 3}), resume=True)
    with pytest.raises(RunError, match=r"got changes in \['optim.lr'\] .*; only run.steps, .* may change"):
        train(tiny_settings(extended, run={"steps": 4, "keep_checkpoints": 3}, optim={"lr": 0.5}), resume=True)
    assert (extended / "config.json").read_bytes() == kept


CRITIC = {
    "credit": "gae_token",
    "filter": "keep_all",
    "critic": {"model": "value"},
    "models": {"value": {"kind": {"name": "token_critic", "decay": "cosine"}}},
}


@pytest.mark.parametrize(
    "sections, where",
    [({"optim": {"decay": "linear"}}, "optim.decay=linear"), (CRITIC, "models.value.kind.decay=cosine")],
)
def test_run_whose_rate_decays_until_its_last_step_is_not_extended(
    tmp_path: Path, sections: Mapping[str, Any], where: str
) -> None:
    settings = tiny_settings(tmp_path / "run", run={"steps": 1}, **sections)
    RunDirectory.create(tmp_path / "run", name="test", config=settings.model_dump(mode="json"))
    more = tiny_settings(tmp_path / "run", run={"steps": 2}, **sections)
    with pytest.raises(RunError, match=rf"run.steps must stay as it is .* \({where}\)"):
        train(more, resume=True)
