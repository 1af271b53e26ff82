"""What an annotator is given and returns, what it may ask of a named model, and the readers of what it wrote."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from envgym.config.plugins import PluginKind
from envgym.core.messages import Message
from envgym.core.tasks import Task
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation, AnnotationLevel, Tree
from envgym.trainer.tables import KINDS

if TYPE_CHECKING:
    from envgym.agents.loop.agent import Agent
    from envgym.agents.protocols import Policy


class Model(Protocol):
    """A model of a run beside its policy: a judge, a reference, a teacher, a scorer. Every method has a default.

    What it can be asked is said by further protocols: `ChatModel`, `LogprobModel`, `ValueModel`.
    """

    def check(self) -> None:
        """See, before the run begins, that it can be used. Raises: InvalidInput: it cannot."""
        return

    def begin(self, folder: Path) -> None:
        """Get ready when the policy is what the run begins with; `folder` is kept with the run, for a resumed one."""
        return

    async def close(self) -> None:
        """End what was opened; called in the event loop that the model was used in."""
        return


MODEL: Final[PluginKind[Model]] = KINDS["model"]


@runtime_checkable
class ChatModel(Protocol):
    """Answers conversations, as a judge does."""

    async def reply(self, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        """Answer a conversation. Raises: InfrastructureError: no answer came in time."""
        ...


@runtime_checkable
class LogprobModel(Protocol):
    """Says how probable tokens are; its tokenizer is the policy's."""

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return for each sequence the log-prob of every token given those before it, in nats; 0.0 for the first."""
        ...


@runtime_checkable
class ValueModel(Protocol):
    """Says what is expected of prefixes of episodes; its tokenizer is the policy's."""

    async def compute_values(self, token_ids: Sequence[tuple[int, ...]], is_over: Sequence[bool]) -> list[float]:
        """Return the value of each prefix, in the range of rewards; `is_over` where the episode ended with it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateContext:
    """What an annotator may use beside the group."""

    step: int
    """Train steps done before the one that the group is for."""
    task: Task
    """Of the group, with its hidden payload."""
    models: Mapping[str, object]
    """The run's named models, each of one or more of the protocols here; `policy` is the policy."""
    policy: "Policy"
    """As it samples now."""
    agent: "Agent"
    """Renders and reads what the policy samples."""


@runtime_checkable
class Annotator(Protocol):
    """Adds annotations to the trees of a group as soon as they have ended, while others are sampled.

    It may have a method `required_models`, which returns the protocol that each named model it uses must have, by name,
    and be a `ProbingAnnotator`. A failure that is not its own, such as a judge that does not answer, becomes an
    annotation with an error.
    """

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        """Return the group with trees to which annotations were added; nothing else of them may differ."""
        ...


ANNOTATOR: Final[PluginKind[Annotator]] = KINDS["annotator"]


@runtime_checkable
class ProbingAnnotator(Annotator, Protocol):
    """Tries its models before the run begins."""

    async def probe(self, tasks: Sequence[Task], models: Mapping[str, object]) -> Mapping[str, float]:
        """Return the measurements on some train tasks. Raises: InvalidInput: the models will not do."""
        ...


def required_models(plugin: object) -> Mapping[str, type]:
    """Return the named models that a plug-in uses, with the protocol that each must have."""
    method = getattr(plugin, "required_models", None)
    return {} if method is None else method()


# ---- writing ---------------------------------------------------------------------------------------------------------


def annotate_trees(group: Group, annotations: Mapping[str, Iterable[Annotation]]) -> Group:
    """Return the group with annotations added to its trees, by tree id."""
    return replace(group, trees=tuple(_with(tree, annotations.get(tree.id, ())) for tree in group.trees))


def _with(tree: Tree, annotations: Iterable[Annotation]) -> Tree:
    added = tuple(annotations)
    return replace(tree, annotations=(*tree.annotations, *added)) if added else tree


# ---- reading ---------------------------------------------------------------------------------------------------------


def turn_annotations(episode: Trajectory, name: str) -> tuple[Annotation | None, ...]:
    """Return the annotation of every turn of an episode; None where it was not annotated."""
    annotations = episode.tree.annotated(name, "turn")
    return tuple(annotations.get(nodes[-1]) for nodes in episode.turn_nodes)


def episode_annotation(episode: Trajectory, name: str) -> Annotation | None:
    """Return the annotation of an episode; None: it was not annotated."""
    return episode.tree.annotated(name, "episode").get(episode.leaf)


def episode_value(episode: Trajectory, name: str) -> float | None:
    """Return the annotated value of an episode; None: it was not annotated, or that failed."""
    annotation = episode_annotation(episode, name)
    return None if annotation is None else annotation.value


def turn_values(episode: Trajectory, name: str) -> tuple[float, ...] | None:
    """Return the annotated value of every turn of an episode; None where one is missing."""
    values = tuple(
        item.value for item in turn_annotations(episode, name) if item is not None and item.value is not None
    )
    return values if len(values) == len(episode.outcomes) else None


def why_missing(episode: Trajectory, name: str, level: AnnotationLevel) -> str:
    """Return why an episode lacks values of a name, in one clause."""
    annotations = [episode_annotation(episode, name)] if level == "episode" else turn_annotations(episode, name)
    errors = [item.error for item in annotations if item is not None and item.error is not None]
    return f"{name}: {errors[0] if errors else 'not annotated'}"
