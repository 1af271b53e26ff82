"""What a report shows: one tree of frozen records, and their JSON form.

Report, tree view and app read the same JSON; `schema.json` beside this module is its published form. Per-token columns
are `[T] or empty`, where empty means that no token of the segment has the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic_core import to_jsonable_python

from envgym.core.json_types import JsonValue
from envgym.core.messages import Role
from envgym.core.segments import Origin
from envgym.core.tasks import Split
from envgym.core.tree import Annotation, Rewrite, SearchStats
from envgym.core.turns import Cost, Ending
from envgym.errors import InvalidInput
from envgym.stats import Estimate, InvalidBounds, PairedComparison

SCHEMA_VERSION = 11
"""Raised by every change of the JSON form."""

TRAIN = "train"
"""`EpisodeData.source` of an episode that was sampled for training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the run declared before it started, beside which its result is read."""

    num_tasks: int
    """Held-out tasks of each evaluation."""
    samples_per_task: int
    num_seeds: int
    """Runs with different seeds that the claim rests on."""
    minimum_detectable_effect: float
    """Difference of success rates that the evaluation detects with probability `power`; see `envgym.stats.power`."""
    alpha: float = 0.05
    power: float = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Where the numbers come from."""

    name: str
    """Of the run."""
    env_ids: tuple[str, ...]
    model: str
    recipe: str = ""
    agent: str = ""
    seeds: tuple[int, ...] = ()
    created: str = ""
    """Date and time of the report, ISO 8601, UTC."""
    device: str = ""
    """Machine in words, such as '2 CPU cores'."""
    duration_s: float | None = None
    """Wall time of the run, all its processes together; None where it was not recorded."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package -> version."""
    settings: str = ""
    """The run's settings file, as text."""
    best_checkpoint: str = ""
    """The checkpoint that `run.keep_best` kept, such as 'step 24, success 0.612'; empty where there is none."""
    declared: Declared | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """The metrics of one train step."""

    step: int
    values: Mapping[str, float | None]
    """'section/name' -> value; None where it was not finite. 'x_low' and 'x_high' beside 'x' are its interval;
    'ending/NAME' and 'time/NAME_s' are shares of one whole and are stacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRates:
    """pass@k and pass^k at one k."""

    k: int
    at_k: Estimate
    hat_k: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """The samples of one task in an evaluation."""

    successes: int
    valid: int
    samples: int
    """Valid and invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFailure:
    """Calls of a tool that failed in the same words."""

    tool: str
    """Empty where a call could not be read."""
    message: str
    """What the agent was answered, in a line."""
    calls: int
    episodes: int
    """In which they happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationData:
    """One evaluation on held-out tasks."""

    step: int
    """Train steps done before it; 0 is the untrained policy."""
    label: str
    """Same label, same tasks and sampling: such evaluations form a curve and may be compared."""
    greedy: bool
    success: InvalidBounds
    """Success over the valid samples, and its bounds."""
    pass_rates: tuple[PassRates, ...] = ()
    endings: Mapping[Ending, int] = field(default_factory=dict)
    """Episodes by ending."""
    tasks: Mapping[str, TaskCounts] = field(default_factory=dict)
    """By task id, in the order of the evaluation."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """Mean per episode, such as 'turns', 'tokens_generated', 'seconds'."""
    tool_failures: tuple[ToolFailure, ...] = ()
    """The most frequent ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonData:
    """Two evaluations of one label, paired by task."""

    label: str
    before_step: int
    after_step: int
    before: Estimate
    """Over the compared tasks."""
    after: Estimate
    """Over the compared tasks."""
    paired: PairedComparison


TOKEN_COLUMNS: Final = ("logprobs", "trained", "advantages", "learner_logprobs", "entropies", "ratios")
"""Of a `SegmentData`: beside its tokens, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentData:
    """A run of tokens of one origin."""

    origin: Origin
    token_ids: tuple[int, ...]
    """[T]"""
    token_strings: tuple[str, ...]
    """[T] as a person reads them."""
    logprobs: tuple[float, ...] = ()
    """[T] or empty: nats, under the distribution sampled from."""
    trained: tuple[bool, ...] = ()
    """[T] or empty: whether the token was under the loss."""
    advantages: tuple[float, ...] = ()
    """[T] or empty."""
    learner_logprobs: tuple[float, ...] = ()
    """[T] or empty: nats, by the learner before the step's first update; their gap to `logprobs` should be about 0."""
    entropies: tuple[float, ...] = ()
    """[T] or empty: nats, of the learner's distribution at the token."""
    ratios: tuple[float, ...] = ()
    """[T] or empty: probability at the step's last update over that under the loss's old policy."""
    policy_version: int | None = None

    def __post_init__(self) -> None:
        num_tokens = len(self.token_ids)
        if len(self.token_strings) != num_tokens:
            raise _column_error("token_strings", f"match the {num_tokens} ids", len(self.token_strings))
        for name in TOKEN_COLUMNS:
            length = len(getattr(self, name))
            if length not in (0, num_tokens):
                raise _column_error(name, f"be empty or match the {num_tokens} ids", length)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageData:
    """A message of the prompt."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnData:
    """One action and the env's reply."""

    segments: tuple[SegmentData, ...]
    """Empty for a policy of messages: then the two texts are all there is."""
    summary: str = ""
    """The action in a line: its tool calls, as 'guess(720)', or the end of what it says; of a part of
    a turn without calls, its own end; of a tree's root, `EpisodeData.question`."""
    action: str = ""
    observation: str = ""
    reward: float | None = None
    """None where it is invalid, or the episode was cut before the env replied."""
    components: Mapping[str, float] = field(default_factory=dict)
    tool_errors: int = 0
    rewrite: Rewrite | None = None
    """Why the context was rendered anew before this turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeData:
    """One episode, from the prompt to its ending."""

    id: str
    """Unique in the report."""
    tree_id: str
    """Names the tree for `envgym view RUN --tree`; its last part is the number of the sample."""
    env_id: str
    task_id: str
    question: str = ""
    """The beginning of the prompt's last message, in a line."""
    answer: str = ""
    """`TurnData.summary` of the last turn."""
    step: int
    """Train step, or train steps done before the evaluation."""
    source: str
    """`TRAIN`, or the label of the evaluation."""
    ending: Ending
    reward: float | None
    """None where it is invalid."""
    components: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    """For an `ERROR_` ending: what failed."""
    prompt: tuple[SegmentData, ...] = ()
    messages: tuple[MessageData, ...] = ()
    """The prompt of a policy of messages, whose tokens are not known."""
    turns: tuple[TurnData, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeData:
    """One node of a tree: the content of the edge above it, and what is known of the prefix that it ends."""

    parent: int | None
    """Index in `TreeData.nodes`, smaller than the node's own; None for the root."""
    turn: int
    """Turn that the edge is of, from 0; -1 for the root, whose edge is the prompt."""
    ends_turn: bool
    """False where a search forked inside the turn, or the episode was cut in it."""
    content: TurnData
    """The edge. A token's advantage is the mean over the episodes through it; it was trained if it was in one."""
    ending: Ending | None = None
    """None where no episode ended."""
    error: str = ""
    """For an `ERROR_` ending: what failed."""
    num_episodes: int = 0
    """Episodes that ended at the node or below."""
    num_valid: int = 0
    """Those of them whose reward is a value."""
    mean_reward: float | None = None
    """Of those; where an episode ended, its own reward. None without any."""
    advantages: Mapping[int, float] = field(default_factory=dict)
    """Leaf -> mean advantage of the edge's sampled tokens in the episode that ended there."""
    cost: Cost = field(default_factory=Cost)
    """Of the edge."""
    stats: SearchStats | None = None
    """What a search knew, as recorded."""
    annotations: tuple[Annotation, ...] = ()
    """Named values of the node, of the turn that ends here, or of the episode that ended here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeData:
    """All that was sampled under one prompt."""

    id: str
    """Unique in the run: source, step and the tree's own id."""
    tree_id: str
    env_id: str
    task_id: str
    split: Split
    seed: str
    """The env's reset seed; text, since it may have more digits than a JSON reader keeps."""
    step: int
    """As `EpisodeData.step`."""
    source: str
    """As `EpisodeData.source`."""
    dropped: str = ""
    """Why a filter dropped the tree's group."""
    nodes: tuple[NodeData, ...]
    """Parents before children; the first is the root."""
    cost: Cost = field(default_factory=Cost)
    """Of all edges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything one report shows."""

    meta: Meta
    metrics: tuple[MetricRow, ...] = ()
    """By rising step."""
    evaluations: tuple[EvaluationData, ...] = ()
    """By rising step."""
    comparisons: tuple[ComparisonData, ...] = ()
    """The first one is the headline."""
    warm_start: tuple[tuple[float, ...], ...] = ()
    """Phase by phase, the loss of every update."""
    episodes: tuple[EpisodeData, ...] = ()
    num_recorded: Mapping[str, int] = field(default_factory=dict)
    """`EpisodeData.source` -> episodes that the run recorded; `episodes` may hold a part of them."""
    trees: tuple[TreeData, ...] = ()
    schema_version: int = SCHEMA_VERSION


def _column_error(what: str, must: str, got: object) -> InvalidInput:
    return InvalidInput.of(what, must, got, where="SegmentData", do="use build_episode")


def to_json(value: object) -> JsonValue:
    """Turn records, enums, mappings and tuples into plain JSON types; a float that is not finite becomes None."""
    plain: JsonValue = to_jsonable_python(value, inf_nan_mode="null", fallback=dict)  # a read-only mapping is a dict
    return plain
