"""Trees to JSON and back, without loss. The schema is versioned; older versions stay readable."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any  # JSON that was just decoded; checked by the records' own constructors

from envgym.core.frozen import quick_maker
from envgym.core.messages import Action, Message, Observation, Part, Role, TextPart, ToolCall, ToolSpec
from envgym.core.segments import Origin, Segment
from envgym.core.tasks import HiddenPayload, Split, Task
from envgym.core.tree import Annotation, Edge, Node, RecordedPrefix, Rewrite, SearchStats, Source, Tree
from envgym.core.turns import Cost, Ending, Invalid, Reward, Scored, TurnOutcome
from envgym.errors import InvalidInput

SCHEMA_VERSION = 3
"""Raised by every change of the JSON form; `tree_from_json` reads this version and all earlier ones.

Version 2: the content of a message is a list of typed parts; in version 1 it is a string.
Version 3: trees with tokens hold their first messages, and the tools, too; a context may begin a CONVERSATION.
"""

Json = dict[str, Any]

_SEGMENT_FIELDS = tuple(field.name for field in fields(Segment))
_NO_COST = Cost()
_ORIGINS = {origin.value: origin for origin in Origin}
_ROLES = {role.value: role for role in Role}
_make_segment, _make_edge, _make_node = quick_maker(Segment), quick_maker(Edge), quick_maker(Node)
_make_outcome, _make_scored = quick_maker(TurnOutcome), quick_maker(Scored)
_make_call, _make_message = quick_maker(ToolCall), quick_maker(Message)
_COST_FIELDS = tuple(field.name for field in fields(Cost))


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
        **({} if tree.source is Source.POLICY else {"source": tree.source.value}),
        "nodes": [_node_to_json(node) for node in tree.nodes],
        **_without_absent(
            annotations=[_annotation_to_json(item) for item in tree.annotations] or None,
            prompts={name: list(ids) for name, ids in tree.prompts.items()} or None,
            messages=[message_to_json(message) for message in tree.messages] or None,
            tools=[_tool_to_json(tool) for tool in tree.tools] or None,
            prefix=tree.prefix and tree.prefix._asdict(),
        ),
    }


def tree_from_json(
    data: Mapping[str, Any],
    *,
    read_segments: Callable[[Any], tuple[Segment, ...]] | None = None,
    read_outcome: Callable[[Any], TurnOutcome] | None = None,
) -> Tree:
    """Read what `tree_to_json` wrote.

    Args:
        data: the tree, decoded.
        read_segments: reads the segments of a node in its own way. None: they are read whole.
        read_outcome: reads the outcome of a node in its own way. None: it is read whole.

    Raises: InvalidInput: a schema newer than this package knows.
    """
    version = data.get("schema")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        do = "read it with a newer envgym"
        raise InvalidInput.of("schema", f"be 1..{SCHEMA_VERSION}", version, where="tree record", do=do)
    record = {
        **data,
        "split": Split(data["split"]),
        "source": Source(data.get("source", Source.POLICY)),
        "nodes": tuple(
            [
                _node_from_json(node, read_segments or _segments_from_json, read_outcome or _outcome_from_json)
                for node in data["nodes"]
            ]
        ),
        "annotations": tuple(Annotation(**{"value": None, **item}) for item in data.get("annotations", ())),
    }
    record["prompts"] = {name: tuple(ids) for name, ids in data.get("prompts", {}).items()}
    record["messages"] = tuple(map(message_from_json, data.get("messages", ())))
    record["tools"] = tuple(ToolSpec(**tool) for tool in data.get("tools", ()))
    record["prefix"] = RecordedPrefix(**data["prefix"]) if "prefix" in data else None
    del record["schema"]
    return Tree(**record)


def task_to_json(task: Task) -> Json:
    """Write a task, with its payload, as plain JSON types; of a payload that is held elsewhere, what finds it."""
    hidden = task.payload if isinstance(task.payload, HiddenPayload) else None
    return {
        "id": task.id,
        "prompt": task.prompt,
        "payload": dict(task.payload),
        "split": task.split.value,
        "metadata": dict(task.metadata),
        **({} if hidden is None else {"hidden": {"key": hidden.key, "index": hidden.index}}),
    }


def task_from_json(data: Mapping[str, Any]) -> Task:
    """Read what `task_to_json` wrote."""
    record = {**data, "split": Split(data["split"])}
    hidden = record.pop("hidden", None)
    return Task(**record) if hidden is None else Task(**{**record, "payload": HiddenPayload(**hidden)})


def _without_absent(**fields: object) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _annotation_to_json(annotation: Annotation) -> Json:
    values = {"value": annotation.value, "verdict": annotation.verdict or None, "error": annotation.error}
    return {"name": annotation.name, "level": annotation.level, "node": annotation.node, **_without_absent(**values)}


def _node_to_json(node: Node) -> Json:
    edge, stats = node.edge, node.stats
    return {
        "parent": node.parent,
        "ends_turn": edge.ends_turn,
        "segments": [segment_to_json(segment) for segment in edge.segments],
        "cost": _cost_to_json(edge.cost),
        **_without_absent(
            rewrite=edge.rewrite and edge.rewrite.value,
            context=[message_to_json(message) for message in edge.context] or None,
            outcome=node.outcome and _outcome_to_json(node.outcome),
            ending=node.ending and node.ending.value,
            error=node.error,
            stats=stats and _stats_to_json(stats),
        ),
    }


def _node_from_json(
    data: Mapping[str, Any],
    read_segments: Callable[[Any], tuple[Segment, ...]],
    read_outcome: Callable[[Any], TurnOutcome],
) -> Node:
    cost = data["cost"]
    edge = _make_edge(
        read_segments(data["segments"]),
        data["ends_turn"],
        Rewrite(data["rewrite"]) if "rewrite" in data else None,
        Cost(**cost) if cost else _NO_COST,
        tuple(map(message_from_json, data["context"])) if "context" in data else (),
    )
    return _make_node(
        data["parent"],
        edge,
        read_outcome(data["outcome"]) if "outcome" in data else None,
        Ending(data["ending"]) if "ending" in data else None,
        data.get("error"),
        SearchStats(**{**data["stats"], "spent": Cost(**data["stats"]["spent"])}) if "stats" in data else None,
    )


def _stats_to_json(stats: SearchStats) -> Json:
    return {
        "visits": stats.visits,
        "value": stats.value,
        "prior": stats.prior,
        "pruned": stats.pruned,
        "spent": _cost_to_json(stats.spent),
        **_without_absent(repeats=stats.repeats, shortfall=stats.shortfall),
    }


def segment_to_json(segment: Segment) -> Json:
    """Write a segment; absent parts are left out."""
    values = {name: value for name in _SEGMENT_FIELDS if (value := getattr(segment, name)) not in (None, ())}
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {**lists, "origin": segment.origin.value}


def segment_from_json(data: Mapping[str, Any]) -> Segment:
    """Read what `segment_to_json` wrote."""
    get = data.get
    behavior, raw, top = get("behavior_logprobs"), get("raw_logprobs"), get("top_logprobs")
    return _make_segment(
        _ORIGINS.get(data["origin"]) or Origin(data["origin"]),
        tuple(data["token_ids"]),
        tuple(get("token_strings", ())),
        None if behavior is None else tuple(behavior),
        None if raw is None else tuple(raw),
        get("policy_version"),
        None if top is None else tuple(tuple((token, value) for token, value in of) for of in top),
    )


def _segments_from_json(data: Iterable[Mapping[str, Any]]) -> tuple[Segment, ...]:
    return tuple([segment_from_json(item) for item in data])


def _cost_to_json(cost: Cost) -> Json:
    return {name: value for name in _COST_FIELDS if (value := getattr(cost, name))}


def _outcome_to_json(outcome: TurnOutcome) -> Json:
    return {
        "action": action_to_json(outcome.action),
        "observation": observation_to_json(outcome.observation),
        "reward": reward_to_json(outcome.reward),
        "tool_errors": outcome.tool_errors,
    }


def _outcome_from_json(data: Mapping[str, Any]) -> TurnOutcome:
    return _make_outcome(
        action_from_json(data["action"]),
        observation_from_json(data["observation"]),
        reward_from_json(data["reward"]),
        data["tool_errors"],
    )


def action_to_json(action: Action) -> Json:
    """Write an action with all that was parsed."""
    return {
        "text": str(action),
        "content": action.content,
        "thinking": action.thinking,
        "tool_calls": [_call_to_json(call) for call in action.tool_calls],
        "malformed": list(action.malformed),
    }


def action_from_json(data: Mapping[str, Any]) -> Action:
    """Read what `action_to_json` wrote."""
    calls = data["tool_calls"]
    return Action(
        data["text"],
        content=data["content"],
        thinking=data["thinking"],
        tool_calls=_calls_from_json(calls) if calls else (),
        malformed=data.get("malformed", ()),
    )


def observation_to_json(observation: Observation) -> Json:
    """Write an observation with its messages."""
    return {"text": str(observation), "messages": [message_to_json(item) for item in observation.messages]}


def observation_from_json(data: Mapping[str, Any]) -> Observation:
    """Read what `observation_to_json` wrote."""
    return Observation(data["text"], [message_from_json(item) for item in data["messages"]])


def reward_to_json(reward: Reward) -> Json:
    """Write a reward: `value` and `components`, or `cause` and `reason`."""
    if isinstance(reward, Invalid):
        return {"cause": reward.cause.value, "reason": reward.reason}
    return {"value": reward.value, "components": dict(reward.components)}


def reward_from_json(data: Mapping[str, Any]) -> Reward:
    """Read what `reward_to_json` wrote."""
    if "cause" in data:
        return Invalid(cause=Ending(data["cause"]), reason=data["reason"])
    return _make_scored(data["value"], data.get("components", {}))


def _call_to_json(call: ToolCall) -> Json:
    return {"name": call.name, "arguments": dict(call.arguments), "id": call.id}


def _calls_from_json(calls: Iterable[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    return tuple([_make_call(call["name"], call["arguments"], call.get("id")) for call in calls])


def _tool_to_json(tool: ToolSpec) -> Json:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def message_to_json(message: Message) -> Json:
    """Write a message in the chat-completions shape; absent parts are left out."""
    return {
        "role": message.role.value,
        "content": [_part_to_json(part) for part in message.parts],
        **_without_absent(
            thinking=message.thinking,
            tool_calls=[_call_to_json(call) for call in message.tool_calls] or None,
            tool_call_id=message.tool_call_id,
            name=message.name,
            is_error=message.is_error or None,
        ),
    }


def message_from_json(data: Mapping[str, Any]) -> Message:
    """Read what `message_to_json` wrote, now or at an earlier schema version. Raises: InvalidInput: an unknown part."""
    get, content = data.get, data["content"]
    if isinstance(content, str):
        parts: tuple[TextPart, ...] = (TextPart(content),) if content else ()
    else:
        parts = tuple([_part_from_json(part) for part in content])
        content = parts[0].text if len(parts) == 1 else "".join([part.text for part in parts])
    calls = get("tool_calls")
    return _make_message(
        _ROLES.get(data["role"]) or Role(data["role"]),
        parts,
        content,
        get("thinking"),
        _calls_from_json(calls) if calls else (),
        get("tool_call_id"),
        get("name"),
        get("is_error", False),
    )


def _part_to_json(part: Part) -> Json:
    if not isinstance(part, TextPart):
        raise InvalidInput.of("message part", "be text", part.type, where="message", do="leave it out")
    return {"type": part.type, "text": part.text}


def _part_from_json(data: Mapping[str, Any]) -> TextPart:
    if data["type"] != TextPart.type:
        do = "read it with a newer envgym"
        raise InvalidInput.of("message part", "be of type text", data["type"], where="message", do=do)
    return TextPart(data["text"])
