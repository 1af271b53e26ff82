"""What the run's process and its rollout workers send each other: HTTP requests with JSON.

    GET  /health   200 while the worker lives
    POST /setup    {version, settings, run, policy, env_servers, list_file, ...}: build the parts of the run
    POST /trees    {order, plan, weights, replays, aborted}: grow a tree, and answer when it has ended
    POST /abort    {tree, reason}: end the branches of a tree that are under way
    POST /change   {plan, settings, weights}: other settings, or other weights, from now on

A refusal has one sentence under `detail`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple  # JSON that was just decoded

from envgym.agents.policies.serving.weights_state import WeightsState
from envgym.core.serialize import task_from_json, task_to_json, tree_from_json, tree_to_json
from envgym.core.tree import Tree
from envgym.trainer.checks.mask_audit import SampledTurn
from envgym.trainer.rollout.draws import request_from_json, request_to_json
from envgym.trainer.rollout.journal import ReusedTurns
from envgym.trainer.rollout.trees import TreeOrder

SETUP, TREES, ABORT, CHANGE = "/setup", "/trees", "/abort", "/change"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """All that a worker builds its parts of."""

    version: str
    """Of this package in the run's process."""
    settings: Json
    """Of the run, as JSON."""
    plan: int
    """Number of these settings: controllers may change them."""
    run: str
    """Id of the run."""
    num_workers: int
    """Workers that share the concurrency of the run."""
    weights: WeightsState
    """Of the policy servers."""
    policy_servers: tuple[str, ...]
    """Addresses."""
    transport: str
    """By which the run brings new weights to the policy servers."""
    env_servers: tuple[str, ...]
    """Addresses of the servers of envs that name none."""
    list_file: str | None
    """List by which servers join and leave."""
    start_s: float | None
    """Seconds that a server which the run starts may take until it serves; None: the run starts none."""
    journal: str | None
    """Folder of the journal; None: the run keeps none."""
    audits: bool
    """Whether the answers hold what was sampled, for the mask audit."""

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "WorkerSetup":
        servers = {name: tuple(data[name]) for name in ("policy_servers", "env_servers")}
        return cls(**{**data, **servers, "weights": WeightsState.from_json(data["weights"])})


class TreeTask(NamedTuple):
    """A tree that a worker is to grow."""

    order: TreeOrder
    plan: int
    """Number of the settings by which the group was begun."""
    weights: WeightsState
    replays: tuple[str, ...] = ()
    """Workers that were lost while they grew this tree: their journals have its first turns. Each is ROLE or, after a
    restart of that worker, ROLE#NUMBER."""
    aborted: str | None = None
    """Why the tree was aborted before it was sent; None: it was not."""


def tree_task_to_json(task: TreeTask) -> Json:
    """Write the body of `/trees`."""
    order, start = task.order, task.order.request.start
    request = replace(order.request, task=None, metadata={})  # which nothing of a tree depends on
    return {
        **task._asdict(),
        "order": {
            "request": request_to_json(request),
            "start": start and tree_to_json(start.tree),
            "task": task_to_json(order.task),
            "step": order.step,
            "number": order.number,
            "index": order.index,
        },
    }


def tree_task_from_json(data: Mapping[str, Any]) -> TreeTask:
    """Read what `tree_task_to_json` wrote."""
    order = data["order"]
    start = order["start"] and tree_from_json(order["start"])
    read = {
        "request": request_from_json(order["request"], {} if start is None else {start.id: start}),
        "task": task_from_json(order["task"]),
    }
    return TreeTask(
        **{
            **data,
            "order": TreeOrder(**{name: value for name, value in (order | read).items() if name != "start"}),
            "weights": WeightsState.from_json(data["weights"]),
            "replays": tuple(data["replays"]),
        }
    )


class GrownTree(NamedTuple):
    """What a worker answers."""

    tree: Tree
    sampled: tuple[SampledTurn, ...]
    """The turns of the tree, for the mask audit."""
    reused: ReusedTurns
    """What the worker took from journals since its last answer."""
    failures: Mapping[str, int]
    """What the worker has survived since its last answer, by name."""


def grown_tree_to_json(grown: GrownTree) -> Json:
    """Write the answer of `/trees`."""
    return {**grown._asdict(), "tree": tree_to_json(grown.tree)}


def grown_tree_from_json(data: Mapping[str, Any]) -> GrownTree:
    """Read what `grown_tree_to_json` wrote."""
    sampled = tuple(SampledTurn(length, code, tuple(ids)) for length, code, ids in data["sampled"])
    return GrownTree(tree_from_json(data["tree"]), sampled, ReusedTurns(*data["reused"]), data["failures"])
