"""The plug-in points of the trainer, each a Protocol; a method is one short file that meets one of them.

Losses, their aggregation and corrections have their Protocols beside their tensors, in `methods.losses` and
`methods.corrections`. Everything here works on records and plain numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Protocol, runtime_checkable

from envgym.agents.protocols import Sampling
from envgym.config.plugins import PluginKind
from envgym.config.settings import Settings
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Task
from envgym.core.trajectory import Group, StartState, Trajectory
from envgym.errors import InvalidInput
from envgym.trainer.methods.scores import ScoreRequest
from envgym.trainer.tables import KINDS


@runtime_checkable
class Checkpointed(Protocol):
    """Has a state that a resumed run goes on with; any method may. What has none needs neither method."""

    def save(self, folder: Path) -> None:
        """Write the state into an empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Take over the state that `save` wrote. Raises: ValueError: it is of another method."""
        ...


class TaskStats(NamedTuple):
    """What training has seen of one task."""

    attempts: int
    rewards: float
    """Sum of episode rewards over valid attempts."""
    squares: float
    """Sum of squared episode rewards over valid attempts."""
    last_step: int


def _no_task(index: int) -> Task:
    do = "pass one that returns tasks"
    raise InvalidInput.of("supply", "have a task function", f"none, asked for task {index}", where="EnvSupply", do=do)


class EnvSupply(NamedTuple):
    """What a curriculum may draw from: one env of the mixture."""

    name: str
    weight: float
    """Share of the groups, relative to the other envs."""
    size: int | None
    """Tasks of the env's own train split, without those that were added; None where they do not end."""
    task: Callable[[int], Task] = _no_task
    """Returns the task of an index, with its metadata; a task is made or read when it is asked for."""
    added: range = range(0)
    """Indices of the tasks that the run has added to the env's own."""


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """One group to collect."""

    env: str
    """Name of the env in the mixture."""
    index: int
    """Index of the task in the env's train split, or of one that was added. With `task`: any; the collector adds the
    task, unless it is there already, and puts its index here."""
    group_size: int
    start: StartState | None = None
    """The state of a recorded episode of this task from which the episodes go on; None: they begin with a reset."""
    hint: str | None = None
    """What a guide adds to the task for these episodes; its tokens are `INJECTED`, and never train."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Name -> hint that the policy is not given, or other words for the task, with its own in place of `{task}`; the
    first context with it is kept in `Tree.prompts`, for scores and hidden states."""
    sampling: Sampling | None = None
    """In place of the run's. Samples of another temperature are another policy's, and refused where the run has no
    `correction`; as in a run's settings, the temperature is above 0 and nothing is cut off."""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    """What the curriculum wants to know of the group again: in `observe`, and in an allocator."""
    direct: bool = False
    """Play its episodes from the start to the end, whatever the run's search."""
    task: Task | None = None
    """A train task that is not the env's own: generated, mined, or made of others."""


class GroupSource(Settings):
    """Settings of a curriculum, allocator or replay that declares the first contexts of its groups.

    A plug-in without these attributes may bring any first context.
    """

    starts_in_demonstrations: ClassVar[bool] = False
    fixed_prompts: ClassVar[tuple[str, ...]] = ()

    @property
    def tree_prompts(self) -> tuple[str, ...]:
        """Names in `Tree.prompts` that are filled."""
        return self.fixed_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumContext:
    """What the groups of a train step are chosen from."""

    step: int
    """Train steps done before the one that the groups are for."""
    num_groups: int
    """Groups of all rounds of the step; fewer may be returned where the tasks do not suffice."""
    group_size: int
    supplies: Sequence[EnvSupply]
    """The envs of the mixture."""
    stats: Mapping[tuple[str, int], TaskStats] = field(default_factory=dict)
    """(env, index) -> what training has seen of the task; nothing where it was not sampled."""
    seed: int = 0
    """From which every draw derives."""
    num_drawn: int | None = None
    """Groups that were drawn for the steps before; None: `num_groups` for each of them."""

    @property
    def first(self) -> int:
        """Number of the step's first group among all that are drawn, from 0."""
        return self.step * self.num_groups if self.num_drawn is None else self.num_drawn


@runtime_checkable
class Curriculum(Protocol):
    """Chooses the next tasks."""

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        """Return the groups of a train step; an equal context, and an equal state of its own, give equal requests."""
        ...


CURRICULUM: Final[PluginKind[Curriculum]] = KINDS["curriculum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a train step has collected."""

    step: int
    """Train steps done, this one included."""
    requests: Sequence[TaskRequest]
    groups: Sequence[Group]
    """One for each request, before the filter."""
    credits: "Sequence[TrajectoryCredit]" = ()
    """Of the episodes that were trained on."""

    @property
    def pairs(self) -> Iterator[tuple[TaskRequest, Group]]:
        """Every request with its group."""
        return zip(self.requests, self.groups, strict=True)


@runtime_checkable
class ObservingCurriculum(Curriculum, Protocol):
    """Chooses the next tasks by what was learned from those before. `Checkpointed`, so that a resumed run goes on."""

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Take in what a train step has collected, and return what the metrics show as `curriculum/NAME`."""
        ...


@runtime_checkable
class Allocator(Protocol):
    """Says how many episodes a group gets, while it is under way, and which of them train."""

    def extend(self, request: TaskRequest, group: Group, *, round: int, step: int) -> TaskRequest | None:
        """Return the request for more trees than those that have ended; None: the group has enough.

        Args:
            request: of the group, with its `task`. What is returned differs in size, hint, start or sampling alone.
            group: all its trees, in the order in which they were begun.
            round: how often it was extended before.
            step: train steps done before the one that the group is for.
        """
        ...

    def finish(self, request: TaskRequest, group: Group) -> Group:
        """Return the group as it trains, of the trees that were sampled."""
        ...


ALLOCATOR: Final[PluginKind[Allocator]] = KINDS["allocator"]


class FilterResult(NamedTuple):
    """Groups kept, and why the others were dropped."""

    kept: tuple[Group, ...]
    dropped: tuple[tuple[Group, str], ...]
    """(group, reason), one short reason name per method."""

    @classmethod
    def split(cls, groups: Sequence[Group], reasons: Sequence[str | None]) -> "FilterResult":
        """Keep the groups that no reason is given to drop."""
        pairs = list(zip(groups, reasons, strict=True))
        remaining = tuple(group for group, reason in pairs if reason is None)
        return cls(remaining, tuple((group, reason) for group, reason in pairs if reason is not None))

    def at_most(self, count: int) -> "FilterResult":
        """Keep the first `count` of the kept groups; the others are dropped as `surplus` of dynamic sampling."""
        surplus = tuple((group, "surplus") for group in self.kept[count:])
        return FilterResult(self.kept[:count], self.dropped + surplus)


@runtime_checkable
class Filter(Protocol):
    """Keeps the groups worth training on.

    It is given the rewards that train, after shaping; with an attribute `rewards` of "env" the rewards of the env. A
    class with `drops_equal_rewards = True` drops groups whose rewards are equal.
    """

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        """Split the groups into kept and dropped, order preserved."""
        ...


FILTER: Final[PluginKind[Filter]] = KINDS["filter"]


@runtime_checkable
class ObservingFilter(Filter, Protocol):
    """Keeps groups by what it has seen of those before. `Checkpointed`, so that a resumed run goes on."""

    def observe(self, groups: Sequence[Group], *, step: int) -> None:
        """Take in all groups that train step `step`, from 1, has collected; called once a step, after the filter."""
        ...


@runtime_checkable
class Shaping(Protocol):
    """Adds to the rewards that credit sees, except one with `is_identity = True`."""

    def __call__(self, group: Group) -> Group:
        """Return the group with other rewards; its episodes and their tokens stay, and none becomes valid.

        An episode whose other reward is unknown, as where a judge failed, becomes invalid, so that it does not train.
        """
        ...


SHAPING: Final[PluginKind[Shaping]] = KINDS["shaping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryCredit:
    """Advantages of one episode, one entry per node of its path."""

    trajectory: Trajectory
    advantages: tuple[float | tuple[float, ...], ...]
    """Along `trajectory.path`: a float holds for every sampled token of the node's edge; a tuple has one entry
    per sampled (POLICY) token of the edge. The root's entry is 0.0."""
    targets: tuple[tuple[float | None, ...], ...] | None = None
    """What the critic learns, shaped like `TrajectoryValues.values`; None: nothing, at this token or anywhere."""


@runtime_checkable
class Credit(Protocol):
    """Assigns advantages to the valid episodes of one group.

    A class may declare `works_alone = False`: the only episode of a group gets 0; `reads_turn_order = True`: a turn's
    credit depends on the turns after it; `trains_equal_rewards = True`: groups
    whose rewards are equal train; `reads_draws = True`: a baseline is the record of an allocator (`draws_of`).
    """

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode, in order. A group of one episode gets advantage 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryValues:
    """One number per sampled token along one episode, such as the critic's values."""

    trajectory: Trajectory
    values: tuple[tuple[float, ...], ...]
    """Along `trajectory.path`: one number per sampled (POLICY) token of the node's edge; the critic's is the value of
    the prefix before the token. The root's entry is ()."""


CRITIC_VALUES: Final = "values"
"""Name of the critic's values in `CreditContext.scores`."""
VALUES: Final = ScoreRequest(name=CRITIC_VALUES, quantity="values")
"""The critic's values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditContext:
    """What a credit may know beside the episodes."""

    step: int = 0
    """The train step, from 0."""
    scores: Mapping[str, Sequence[TrajectoryValues]] = field(default_factory=dict)
    """Name -> one entry per valid episode of all groups, in order."""

    def scores_of(self, name: str, groups: Sequence[Group]) -> list[tuple[TrajectoryValues, ...]]:
        """Return a score of every group's valid episodes. Raises: InvalidInput: it is not one entry per episode."""
        scores, expected = self.scores.get(name, ()), sum(len(group.valid) for group in groups)
        if len(scores) != expected:
            do = "give one entry per valid episode, in order"
            raise InvalidInput.of(name, f"be of {expected} episodes", len(scores), where="CreditContext.scores", do=do)
        remaining = iter(scores)
        return [tuple(next(remaining) for _ in group.valid) for group in groups]


class GroupCredit(Settings):
    """Settings of a credit that compares the episodes of a group."""

    works_alone: ClassVar[bool] = False


@runtime_checkable
class BatchCredit(Protocol):
    """Assigns advantages to the valid episodes of all groups of a step together.

    It may have an attribute `scores`, a tuple of `ScoreRequest`: what it finds in the context; and those of a `Credit`.
    """

    def assign(self, groups: Sequence[Group], context: CreditContext) -> Sequence[TrajectoryCredit]:
        """Return one credit per valid episode, group by group; an episode that is left out does not train."""
        ...


CREDIT: Final[PluginKind[Credit | BatchCredit]] = KINDS["credit"]


@runtime_checkable
class CriticCredit(BatchCredit, Protocol):
    """Assigns advantages with the help of a critic, whose values are the score `CRITIC_VALUES`; sets `targets`."""

    @property
    def trains_at_turn_ends(self) -> bool:
        """Whether the critic has a target before the last token of a turn, so that it can value a finished episode."""
        ...
