"""Trees to JSON and back, without loss. The schema is versioned; older versions stay readable."""

from collections.abc import Mapping
from typing import Any  # JSON that was just decoded; checked by the records' own constructors

from envgym.core.endings import Ending
from envgym.core.json_types import JsonObject
from envgym.core.messages import Action, Message, Observation, Part, Role, TextPart, ToolCall
from envgym.core.rewards import Invalid, Reward, Scored
from envgym.core.segments import Origin, Segment
from envgym.core.tasks import Split, Task
from envgym.core.tree import Edge, Node, Rewrite, SearchStats, Tree
from envgym.core.turns import Cost, TurnOutcome
from envgym.errors import InvalidInput, sentence

SCHEMA_VERSION = 2
"""Raised by every change of the JSON form; `tree_from_json` reads this version and all earlier ones.

Version 2: the content of a message is a list of typed parts; in version 1 it is a string.
"""

_COST_FIELDS = ("tokens_generated", "tokens_prefilled", "tool_calls", "env_steps", "seconds")

Json = dict[str, Any]


def tree_to_json(tree: Tree) -> Json:
    """Write a tree as plain JSON types."""
    return {
        "schema": SCHEMA_VERSION,
        "id": tree.id,
        "env_id": tree.env_id,
        "task_id": tree.task_id,
        "task_key": tree.task_key,
        "split": tree.split.value,
        "seed": tree.seed,
        "nodes": [_node_to_json(node) for node in tree.nodes],
    }


def tree_from_json(data: Mapping[str, Any]) -> Tree:
    """Read what `tree_to_json` wrote. Raises: InvalidInput: a schema newer than this package knows."""
    version = data.get("schema")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise InvalidInput(
            sentence(
                "schema", f"be 1..{SCHEMA_VERSION}", version, where="tree record", do="read it with a newer envgym"
            )
        )
    return Tree(
        id=data["id"],
        env_id=data["env_id"],
        task_id=data["task_id"],
        task_key=data["task_key"],
        split=Split(data["split"]),
        seed=data["seed"],
        nodes=tuple(_node_from_json(node) for node in data["nodes"]),
    )


def task_to_json(task: Task) -> Json:
    """Write a task, hidden payload included, as plain JSON types."""
    return {
        "id": task.id,
        "prompt": task.prompt,
        "payload": dict(task.payload),
        "split": task.split.value,
        "metadata": dict(task.metadata),
    }


def task_from_json(data: Mapping[str, Any]) -> Task:
    """Read what `task_to_json` wrote."""
    return Task(
        id=data["id"],
        prompt=data["prompt"],
        payload=data["payload"],
        split=Split(data["split"]),
        metadata=data["metadata"],
    )


def _node_to_json(node: Node) -> Json:
    edge = node.edge
    data: Json = {
        "parent": node.parent,
        "ends_turn": edge.ends_turn,
        "segments": [segment_to_json(segment) for segment in edge.segments],
        "cost": _cost_to_json(edge.cost),
    }
    if edge.rewrite is not None:
        data["rewrite"] = edge.rewrite.value
    if node.outcome is not None:
        data["outcome"] = _outcome_to_json(node.outcome)
    if node.ending is not None:
        data["ending"] = node.ending.value
    if node.error is not None:
        data["error"] = node.error
    if node.stats is not None:
        stats = node.stats
        data["stats"] = {
            "visits": stats.visits,
            "value": stats.value,
            "prior": stats.prior,
            "pruned": stats.pruned,
            "spent": _cost_to_json(stats.spent),
            **({} if stats.repeats is None else {"repeats": stats.repeats}),
            **({} if stats.shortfall is None else {"shortfall": stats.shortfall}),
        }
    return data


def _node_from_json(data: Mapping[str, Any]) -> Node:
    edge = Edge(
        segments=tuple(segment_from_json(segment) for segment in data["segments"]),
        ends_turn=data["ends_turn"],
        rewrite=Rewrite(data["rewrite"]) if "rewrite" in data else None,
        cost=Cost(**data["cost"]),
    )
    stats = None
    if "stats" in data:
        stats = SearchStats(**{**data["stats"], "spent": Cost(**data["stats"]["spent"])})
    return Node(
        parent=data["parent"],
        edge=edge,
        outcome=_outcome_from_json(data["outcome"]) if "outcome" in data else None,
        ending=Ending(data["ending"]) if "ending" in data else None,
        error=data.get("error"),
        stats=stats,
    )


def segment_to_json(segment: Segment) -> Json:
    """Write a segment; absent parts are left out."""
    data: Json = {"origin": segment.origin.value, "token_ids": list(segment.token_ids)}
    if segment.token_strings:
        data["token_strings"] = list(segment.token_strings)
    if segment.behavior_logprobs is not None:
        data["behavior_logprobs"] = list(segment.behavior_logprobs)
    if segment.raw_logprobs is not None:
        data["raw_logprobs"] = list(segment.raw_logprobs)
    if segment.policy_version is not None:
        data["policy_version"] = segment.policy_version
    return data


def segment_from_json(data: Mapping[str, Any]) -> Segment:
    """Read what `segment_to_json` wrote."""
    behavior, raw = data.get("behavior_logprobs"), data.get("raw_logprobs")
    return Segment(
        origin=Origin(data["origin"]),
        token_ids=tuple(data["token_ids"]),
        token_strings=tuple(data.get("token_strings", ())),
        behavior_logprobs=None if behavior is None else tuple(behavior),
        raw_logprobs=None if raw is None else tuple(raw),
        policy_version=data.get("policy_version"),
    )


def _cost_to_json(cost: Cost) -> Json:
    return {name: getattr(cost, name) for name in _COST_FIELDS if getattr(cost, name)}


def _outcome_to_json(outcome: TurnOutcome) -> Json:
    action = outcome.action
    return {
        "action": {
            "text": str(action),
            "content": action.content,
            "thinking": action.thinking,
            "tool_calls": [_call_to_json(call) for call in action.tool_calls],
            "malformed": list(action.malformed),
        },
        "observation": {
            "text": str(outcome.observation),
            "messages": [message_to_json(message) for message in outcome.observation.messages],
        },
        "reward": reward_to_json(outcome.reward),
        "tool_errors": outcome.tool_errors,
    }


def _outcome_from_json(data: Mapping[str, Any]) -> TurnOutcome:
    action, observation = data["action"], data["observation"]
    return TurnOutcome(
        action=Action(
            action["text"],
            content=action["content"],
            thinking=action["thinking"],
            tool_calls=[ToolCall(**call) for call in action["tool_calls"]],
            malformed=action["malformed"],
        ),
        observation=Observation(observation["text"], [message_from_json(m) for m in observation["messages"]]),
        reward=reward_from_json(data["reward"]),
        tool_errors=data["tool_errors"],
    )


def reward_to_json(reward: Reward) -> Json:
    """Write a reward: `value` and `components`, or `cause` and `reason`."""
    if isinstance(reward, Invalid):
        return {"cause": reward.cause.value, "reason": reward.reason}
    return {"value": reward.value, "components": dict(reward.components)}


def reward_from_json(data: Mapping[str, Any]) -> Reward:
    """Read what `reward_to_json` wrote."""
    if "cause" in data:
        return Invalid(cause=Ending(data["cause"]), reason=data["reason"])
    return Scored(value=data["value"], components=data["components"])


def _call_to_json(call: ToolCall) -> Json:
    return {"name": call.name, "arguments": dict(call.arguments), "id": call.id}


def message_to_json(message: Message) -> Json:
    """Write a message in the chat-completions shape; absent parts are left out."""
    data: Json = {"role": message.role.value, "content": [_part_to_json(part) for part in message.parts]}
    if message.thinking is not None:
        data["thinking"] = message.thinking
    if message.tool_calls:
        data["tool_calls"] = [_call_to_json(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        data["name"] = message.name
    return data


def message_from_json(data: Mapping[str, Any]) -> Message:
    """Read what `message_to_json` wrote, now or at an earlier schema version. Raises: InvalidInput: an unknown part."""
    content = data["content"]
    return Message(
        role=Role(data["role"]),
        content=content if isinstance(content, str) else "",
        parts=None if isinstance(content, str) else [_part_from_json(part) for part in content],
        thinking=data.get("thinking"),
        tool_calls=tuple(_call_from_json(call) for call in data.get("tool_calls", ())),
        tool_call_id=data.get("tool_call_id"),
        name=data.get("name"),
    )


def _part_to_json(part: Part) -> Json:
    if not isinstance(part, TextPart):
        raise InvalidInput(sentence("message part", "be text", part.type, where="message", do="leave it out"))
    return {"type": part.type, "text": part.text}


def _part_from_json(data: Mapping[str, Any]) -> Part:
    if data["type"] != TextPart.type:
        do = "read it with a newer envgym"
        raise InvalidInput(sentence("message part", "be of type text", data["type"], where="message", do=do))
    return TextPart(data["text"])


def _call_from_json(data: JsonObject) -> ToolCall:
    return ToolCall(**dict(data))  # type: ignore[arg-type]  # decoded JSON; the record checks names
