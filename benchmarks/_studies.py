"""What studies share: a declaration fixed beforehand, training runs, and means over seeds with Student's interval."""

import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Final, NamedTuple, TypeVar

from pydantic import Field
from scipy.stats import t  # type: ignore[import-untyped]  # shipped without types

from envgym.agents.evaluation.play import EvalRecord
from envgym.errors import SettingsError, sentence
from envgym.runs import RunDirectory
from envgym.settings import Settings, build_settings, read_settings_file
from envgym.stats import successes_of

ROOT: Final = Path(__file__).resolve().parent.parent
LEVEL = 0.95
POWER = 0.8

SettingsT = TypeVar("SettingsT", bound=Settings)


def read_declaration(kind: type[SettingsT], study: str) -> SettingsT:
    """Read the declaration of a study in `examples/`."""
    path = ROOT / "examples" / study / "declaration.yaml"
    return build_settings(kind, read_settings_file(path), where=path.name)


def check_declared(effects: Mapping[str, float | None]) -> None:
    """Check that every minimum detectable effect is declared. Raises: SettingsError: one is not yet."""
    missing = [name for name, effect in effects.items() if effect is None]
    if missing:
        do = "run `pilot`, write what it prints into declaration.yaml, and commit that"
        must = "be declared before the study is run"
        raise SettingsError(sentence("minimum_detectable_effect", must, "none", where=", ".join(missing), do=do))


def train(
    config: str, directory: Path, sets: Mapping[str, object], *, is_whole: Callable[[RunDirectory], bool]
) -> None:
    """Train in a process of its own, unless that run is whole; one that was stopped is resumed.

    Raises: CalledProcessError: it failed; its output tells the reason.
    """
    if directory.exists() and is_whole(RunDirectory.open(directory)):
        return
    directory = directory.resolve()
    if directory.exists():
        words = [str(directory), "--resume"]
    else:
        every = {**sets, "run.directory": directory, "run.name": directory.name}
        words = [config, *(word for name, value in every.items() for word in ("--set", f"{name}={value}"))]
    subprocess.run([sys.executable, "-m", "envgym", "train", *words], cwd=ROOT, check=True)


def evaluated_after(step: int) -> Callable[[RunDirectory], bool]:
    """Return what tells whether a run was evaluated after so many steps."""
    return lambda run: success(run.path, step) is not None


def success(directory: Path, step: int) -> float | None:
    """Return the share of held-out tasks solved after `step` steps; None: that was not measured, or not yet.

    Solved is a reward of at least `evaluation.success_at`; an invalid episode is not.
    """
    if not directory.exists():
        return None
    for record in RunDirectory.open(directory).evals():
        if record["step"] == step:
            solved = successes_of(record["rewards"], record["success_at"])
            return fmean(fmean(bool(success) for success in of_task) for of_task in solved.values())
    return None


def solved(record: EvalRecord) -> dict[str, list[float]]:
    """Return task id -> success of each sample; an invalid episode is a failure."""
    return {
        task: [float(reward is not None and reward >= record.success_at) for reward in rewards]
        for task, rewards in record.rewards.items()
    }


class Game(Settings):
    """What is declared about one env that is trained on; its settings stand in the file of its name."""

    budget: int = Field(ge=1)
    """Tokens generated and prefilled that training may spend."""
    minimum_detectable_effect: float | None = Field(default=None, gt=0, le=1)
    """Difference in final success that the declared seeds can show, by the spread of the pilot seeds' differences;
    None: not known yet, and the declared seeds are not run."""


class Mean(NamedTuple):
    """A mean over seeds and the ends of its interval."""

    value: float
    low: float
    high: float


def share(mean: Mean) -> str:
    """Return a share in percent, with its interval."""
    return f"{100 * mean.value:.1f} [{100 * mean.low:.1f}, {100 * mean.high:.1f}]"


def points(mean: Mean) -> str:
    """Return a difference of shares in points, with its interval."""
    return f"{100 * mean.value:+.1f} [{100 * mean.low:+.1f}, {100 * mean.high:+.1f}]"


def t_quantile(share: float, freedom: int) -> float:
    """Return t with P(T <= t) = share of Student's distribution."""
    return float(t.ppf(share, freedom))


def t_interval(values: Sequence[float]) -> Mean:
    """Return the mean of independent values with its interval; one value has none, and its ends are infinite."""
    mean = fmean(values)
    if len(values) < 2:
        return Mean(mean, -math.inf, math.inf)
    half = t_quantile((1 + LEVEL) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Mean(mean, mean - half, mean + half)


def minimum_detectable_effect(spread: float, num_seeds: int, *, freedom: int | None = None) -> float:
    """Return the mean difference that is detected with probability `POWER`: (t_{1-a/2} + t_power) spread / sqrt(n).

    `freedom` is that of the estimate of the spread, by default n - 1.
    """
    freedom = num_seeds - 1 if freedom is None else freedom
    return (t_quantile((1 + LEVEL) / 2, freedom) + t_quantile(POWER, freedom)) * spread / math.sqrt(num_seeds)


def pooled_intervals(samples: Mapping[str, Sequence[float]], *, level: float = LEVEL) -> dict[str, Mean]:
    """Return each sample's mean with its interval by one spread for all, which few seeds then tell better.

    The freedom is that of all samples together; samples must be of equal size, of at least 2.
    """
    num_seeds = len(next(iter(samples.values())))
    quantile = t_quantile((1 + level) / 2, len(samples) * (num_seeds - 1))
    half = quantile * pooled_spread(list(samples.values())) / math.sqrt(num_seeds)
    return {name: Mean(mean := fmean(values), mean - half, mean + half) for name, values in samples.items()}


def pooled_spread(samples: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation within samples of equal size, their means left free."""
    return math.sqrt(fmean(variance(sample) for sample in samples))
