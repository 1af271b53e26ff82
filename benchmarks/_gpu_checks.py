"""What `benchmarks/gpu.py` checks on a device before it measures speed: numbers, and whole runs.

With `is_dry` everything is small enough for a CPU.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import envgym
from benchmarks._gpu_numerics import Check, Checked, check_attention, check_compiled, check_packing, check_sampling
from envgym.runs.directory import RunDirectory
from envgym.trainer.train import train
from tests.support.tiny_runs import tiny_settings

_SHORT: Final = ("sft.episodes=16", "sft.next.episodes=8", "evaluation.tasks=4", "rollout.groups=2")


def check_demo(device: torch.device, is_dry: bool) -> Checked:
    """Train `examples/demo.yaml` for fewer steps, with mask audit and canary, which stop a run at a gap."""
    return _demo(device, 1 if is_dry else 8, _SHORT if is_dry else (), may_lose=1.0 if is_dry else 0.0)


def check_server(device: torch.device, is_dry: bool) -> Checked:
    """Train it for two steps from a short warm start, with a policy server that reads new weights from the GPU."""
    return _demo(device, 2, (*_SHORT, "launch.servers=1", "launch.transport=ipc"), may_lose=1.0)


def _demo(device: torch.device, steps: int, changes: Sequence[str], *, may_lose: float) -> Checked:
    settings = yaml.safe_load(Path("examples/demo.yaml").read_text(encoding="utf-8"))
    overrides = [f"engine.device={device.type}", f"run.steps={steps}", "run.checkpoint_every=8", "run.trackers=[]"]
    overrides += changes
    with tempfile.TemporaryDirectory() as folder:
        result = envgym.train(settings, overrides=[*overrides, f"run.directory={folder}/demo"])
        rows = RunDirectory.open(result.directory).metrics()
    numbers = [value for row in rows for name, value in row.items() if name.startswith(("loss/", "sft/loss", "optim/"))]
    before, after = (_success(record.rewards, record.success_at) for record in result.evaluations)
    gaps = [row["canary/gap"] for row in rows if "canary/gap" in row]
    checks = [
        Check("numbers that are not finite", sum(not math.isfinite(number) for number in numbers), 0.0),
        Check("steps without a canary", steps - len(gaps), 0.0),
        Check("canary, nats", max(gaps, default=math.nan), 0.1),
        Check("success lost", before - after, may_lose),
    ]
    return Checked(checks, {"steps": steps, "success_before": before, "success_after": after})


def _success(rewards: Mapping[str, tuple[float | None, ...]], success_at: float) -> float:
    of_tasks = [reward is not None and reward >= success_at for samples in rewards.values() for reward in samples]
    return sum(of_tasks) / len(of_tasks)


def check_resume(device: torch.device, is_dry: bool) -> Checked:
    """Repeat the last step of a run from its checkpoint: the same weights, exactly so on the CPU."""
    steps = 2 if is_dry else 3
    with tempfile.TemporaryDirectory() as folder:
        run = {"steps": steps, "keep_checkpoints": steps}
        settings = tiny_settings(Path(folder) / "run", run=run, engine={"device": device.type})
        checkpoints = train(settings).directory / "checkpoints"
        last = checkpoints / f"step-{steps:06d}"
        before, expected = _weights(checkpoints / f"step-{steps - 1:06d}"), _weights(last)
        shutil.rmtree(last)
        train(settings, resume=True)
        found = _weights(last)
    moved = (expected - before).norm().item()
    gap = (found - expected).norm().item() / moved if moved else math.nan
    return Checked([Check("gap of the repeated step", gap, 0.0 if device.type == "cpu" else 0.05)], {"moved": moved})


def _weights(checkpoint: Path) -> Tensor:
    weights = load_file(checkpoint / "model" / "model.safetensors")
    return torch.cat([weights[name].double().flatten() for name in sorted(weights)])


CHECKS: Final[dict[str, Callable[[torch.device, bool], Checked]]] = {
    "attention": check_attention,
    "packing": check_packing,
    "compiled": check_compiled,
    "sampling": check_sampling,
    "demo": check_demo,
    "server": check_server,
    "resume": check_resume,
}


def assert_passes(name: str, device: torch.device, *, is_dry: bool) -> Checked:
    """Run a stage of checks. Raises: AssertionError: one is beyond its bound."""
    found = CHECKS[name](device, is_dry)
    failed = [check.to_json() for check in found.checks if not check.is_passed]
    assert not failed, json.dumps(failed)
    return found
