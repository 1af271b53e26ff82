"""What `benchmarks/gpu.py` checks on a device before it measures speed: numbers, and whole runs.

With `is_dry` everything is small enough for a CPU.
"""

import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import envgym
from benchmarks._gpu_numerics import (
    BOUNDS,
    Check,
    Checked,
    check_attention,
    check_compiled,
    check_packing,
    check_sampling,
    small_model,
    uneven_rows,
)
from benchmarks.packing import as_train_rows
from envgym.runs.directory import RunDirectory
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.optimizers.exact import LEFT_OUT, joined
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.train import train
from tests.support.tiny_runs import tiny_settings

PRECISIONS: Final = {  # dtype of the weights, and of the matrix products where it is another
    "float32": (torch.float32, None),
    "mixed": (torch.float32, torch.bfloat16),
    "bfloat16": (torch.bfloat16, None),
}
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


def check_precision(device: torch.device, is_dry: bool) -> Checked:
    """Compare `mixed` and `bfloat16` with `float32`: log-probs before training, and how far updates move weights."""
    trunk, turn = (20, 8) if is_dry else (300, 90)
    train_rows = as_train_rows([(list(row), trunk) for row in uneven_rows(0, trunk=trunk, turn=turn)])
    objective = Objective(loss=PpoClip(), correction=NoCorrection(), settings=ObjectiveSettings(), temperature=1.0)
    updates = 3 if is_dry else 50
    logprobs, moved, seconds = {}, {}, {}
    for precision, (dtype, autocast) in PRECISIONS.items():
        model = small_model(device, torch.bfloat16, mixed=True)  # the same numbers in every precision
        torch.nn.Module.to(model, dtype=dtype)
        optim = OptimSettings(lr=1e-5, micro_batch_tokens=2048)
        learner = Learner(model, optim=optim, num_steps=updates, device=device, autocast=autocast)
        logprobs[precision] = learner.compute_logprobs(train_rows, 1.0).double()
        before = [parameter.detach().double() for parameter in learner.parameters]
        started = time.perf_counter()
        for step in range(updates):
            learner.train_step(train_rows, objective, step=step)
        seconds[precision] = (time.perf_counter() - started) / updates
        exact = [_exact_weight(learner.optimizer, parameter) for parameter in learner.parameters]
        moved[precision] = torch.stack([(a - b).norm() for a, b in zip(exact, before, strict=True)]).norm().item()
    trained = sum(sum(row.loss_mask) for row in train_rows)
    checks: list[Check] = []
    for precision in ("mixed", "bfloat16"):
        gap = (logprobs[precision] - logprobs["float32"]).abs().sum().item() / trained
        checks += [
            Check(f"{precision} log-probs, nats", gap, BOUNDS["bfloat16"].logprobs),
            Check(
                f"{precision} share of the movement that differs", abs(moved[precision] / moved["float32"] - 1), 0.05
            ),
        ]
    return Checked(checks, {"seconds_per_update": seconds})


def _exact_weight(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Tensor:
    """Return a weight in float64, with the bits that bfloat16 leaves out."""
    left_out = optimizer.state[parameter].get(LEFT_OUT)
    return (parameter.detach() if left_out is None else joined(parameter.detach(), left_out)).double()


CHECKS: Final[dict[str, Callable[[torch.device, bool], Checked]]] = {
    "attention": check_attention,
    "packing": check_packing,
    "compiled": check_compiled,
    "precision": check_precision,
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
