"""What a metric is, how the settings choose several, and the samples of episodes by task that most of them count."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from envgym.agents.tables import KINDS
from envgym.config.plugins import Choice, PluginKind
from envgym.config.settings import Settings
from envgym.core.trajectory import Trajectory
from envgym.core.turns import Scored, reaches
from envgym.errors import InvalidInput
from envgym.stats import Estimate
from envgym.stats.rates import powers_of_2

ValueT = TypeVar("ValueT")


class Metric(Protocol):
    """Measures episodes."""

    def __call__(self, episodes: Sequence[Trajectory]) -> Mapping[str, float | Estimate]:
        """Return numbers by name, with an interval or without; {} where nothing can be measured.

        Args:
            episodes: those of a train step, or of one env's evaluation; with and without a valid reward.
        """
        ...


METRIC: Final[PluginKind[Metric]] = KINDS["metric"]


class SuccessSettings(Settings):
    """Settings of a metric that counts successes."""

    success_at: float = 1.0
    """An episode succeeds when its reward is at least this; left out, it is `evaluation.success_at`."""


class DrawSettings(SuccessSettings):
    """Settings of a metric of k samples of a task."""

    k: tuple[int, ...] = ()
    """Samples drawn; none: 1, 2, 4 ... up to the samples of a task. A k that no task has is left out."""

    def ks(self, samples: Mapping[str, Sequence[object]]) -> list[int]:
        """Return those k of which some task has the samples."""
        most = max(map(len, samples.values()), default=0)
        return [k for k in self.k or powers_of_2(most) if 1 <= k <= most]


def build_metrics(choices: Sequence[Choice], *, success_at: float) -> tuple[Metric, ...]:
    """Make the metrics that settings choose; those that count successes share `success_at` where they name none.

    Raises: UnknownName, SettingsError: there is no such metric, or it refuses its settings.
    """
    return tuple(METRIC.build(_with_threshold(choice, success_at)) for choice in choices)


def _with_threshold(choice: Choice, success_at: float) -> Choice:
    plugin = METRIC.load(choice.name)
    counts = isinstance(plugin, type) and issubclass(plugin, SuccessSettings)
    return Choice(**{"success_at": success_at, **choice.model_dump()}) if counts else choice


def compute_metrics(metrics: Sequence[Metric], episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return the numbers of all metrics, called `metric/<name>`, with `_low` and `_high` beside an estimate.

    Raises: InvalidInput: two numbers have one name.
    """
    numbers: dict[str, float] = {}
    for metric in metrics:
        for name, value in ((key, number) for item in metric(episodes).items() for key, number in _numbers(*item)):
            do = "rename one, or leave one of the metrics out"
            is_new = name not in numbers
            InvalidInput.unless(is_new, name.removeprefix("metric/"), "be one number", "two", where="metrics", do=do)
            numbers[name] = value
    return numbers


def _numbers(name: str, value: float | Estimate) -> list[tuple[str, float]]:
    if not isinstance(value, Estimate):
        return [(f"metric/{name}", float(value))]
    ends = (("_low", value.interval.low), ("_high", value.interval.high))
    return [(f"metric/{name}", value.value), *((f"metric/{name}{end}", number) for end, number in ends)]


class MetricValue(NamedTuple):
    """One number that a metric gave."""

    value: float
    low: float | None
    """End of its interval; None where it has none."""
    high: float | None

    @property
    def words(self) -> str:
        """The number, such as `0.612 [0.574, 0.649]`."""
        return f"{self.value:.4g}" if self.low is None else f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def read_metrics(numbers: Mapping[str, float]) -> dict[str, MetricValue]:
    """Return by name what `compute_metrics` gave, each number with its interval."""
    ends = {f"{name}{end}" for name in numbers for end in ("_low", "_high")}
    return {
        name.removeprefix("metric/"): MetricValue(value, numbers.get(f"{name}_low"), numbers.get(f"{name}_high"))
        for name, value in numbers.items()
        if name not in ends
    }


# ---- samples by task -------------------------------------------------------------------------------------------------


def by_task(episodes: Sequence[Trajectory], value: Callable[[Trajectory], ValueT | None]) -> dict[str, list[ValueT]]:
    """Return task -> `value` of each of its episodes, without None; a task is its env and its content."""
    samples: dict[str, list[ValueT]] = {}
    for episode in episodes:
        number = value(episode)
        if number is not None:
            samples.setdefault(f"{episode.tree.env_id}/{episode.tree.task_key}", []).append(number)
    return samples


def reward_of(episode: Trajectory) -> float | None:
    """Return an episode's reward; None where it is invalid."""
    reward = episode.reward
    return reward.value if isinstance(reward, Scored) else None


def succeeds(episode: Trajectory, success_at: float) -> bool:
    """Tell whether an episode is valid and its reward is a success."""
    reward = reward_of(episode)
    return reward is not None and reaches(reward, success_at)


def rewards_by_task(episodes: Sequence[Trajectory]) -> dict[str, list[float]]:
    """Return task -> the rewards of its valid episodes."""
    return by_task(episodes, reward_of)


def successes_by_task(episodes: Sequence[Trajectory], success_at: float) -> dict[str, list[bool]]:
    """Return task -> whether each of its valid episodes succeeded."""
    return {task: [reaches(reward, success_at) for reward in own] for task, own in rewards_by_task(episodes).items()}
