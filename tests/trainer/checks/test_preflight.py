"""A run is resumed with its own number types, whatever its settings call them and whatever the device is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.models import loading
from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.trainer.checks import preflight
from envgym.trainer.checks.preflight import open_run_directory, resolve_precision
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import train
from tests.support.tiny_runs import tiny_settings


def settings_on(directory: Path, device: str, **model: str) -> TrainSettings:
    data = {"run": {"directory": str(directory)}, "model": model, "engine": {"device": device}}
    return resolve_precision(train_settings({**data, "envs": [{"id": "math/arithmetic-v0"}]}))


class NotesPrecision(Callback):
    """Remembers the precision that a run tells when it starts."""

    precision = ""

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        self.precision = config["model"]["precision"]


def created(settings: TrainSettings) -> None:
    RunDirectory.create(settings.run.path, name="run", config=settings.model_dump(mode="json"))


@pytest.mark.parametrize("device, precision", [("cpu", "float32"), ("cuda", "mixed"), ("cuda:1", "mixed")])
def test_auto_is_the_precision_of_the_device(device: str, precision: str, tmp_path: Path) -> None:
    assert settings_on(tmp_path, device).model.precision == precision
    assert settings_on(tmp_path, device, precision="bfloat16").model.precision == "bfloat16"


def test_a_run_records_the_precision_that_it_used(tmp_path: Path) -> None:
    noted = NotesPrecision()
    train(tiny_settings(tmp_path / "run", run={"steps": 0}), callbacks=[noted])
    assert noted.precision == "float32", "callbacks and trackers are told what the file states"
    assert RunDirectory.open(tmp_path / "run").config["model"]["precision"] == "float32"
    train(tiny_settings(tmp_path / "run", run={"steps": 1}), resume=True)  # `auto` again
    assert RunDirectory.open(tmp_path / "run").config["model"]["precision"] == "float32"


def test_a_run_older_than_precision_is_resumed_with_its_number_types(tmp_path: Path) -> None:
    settings = settings_on(tmp_path / "run", "cpu")
    created(settings)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["model"]["precision"]
    config["model"] |= {"dtype": "float32", "autocast": "none"}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    (tmp_path / "run" / "run.json").write_text(json.dumps({"schema": 3, "name": "run", "id": "0"}))
    assert open_run_directory(settings, resume=True) is not None
    with pytest.raises(RunError, match=r"model\.precision must be float32 as in the run, .* got mixed .*set model"):
        open_run_directory(settings_on(tmp_path / "run", "cpu", precision="mixed"), resume=True)


def test_a_run_of_another_device_keeps_its_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "device_type", lambda name: "cuda")
    created(settings_on(tmp_path / "run", "auto"))
    monkeypatch.setattr(preflight, "device_type", loading.device_type)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RunError, match=r"model\.precision must be mixed as in the run, .* got float32 "):
        open_run_directory(settings_on(tmp_path / "run", "auto"), resume=True)
    assert open_run_directory(settings_on(tmp_path / "run", "auto", precision="mixed"), resume=True) is not None
