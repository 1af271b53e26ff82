"""The reward of a task, as tau2-bench computes it: the product of the parts that the task names.

`DB`: the database is what the golden actions make of it. `COMMUNICATE`: the agent has told the user certain texts.
`ENV_ASSERTION`: assertions on the databases hold. `ACTION`: every golden action was called. Assertions in natural
language are no part of any task's reward basis; they would need a model and are left out.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envgym.core.json_types import JsonObject
from envgym.core.turns import Scored
from envgym.envs.tools._tau2.databases import Tau2Databases, rows
from envgym.errors import ToolError

DEFAULT_BASIS = ("DB", "COMMUNICATE")


def criteria_of(task: JsonObject) -> Mapping[str, Any]:
    criteria = task.get("evaluation_criteria")
    assert isinstance(criteria, Mapping), "every task of the splits has criteria"
    return criteria


def golden_actions(task: JsonObject) -> list[dict[str, Any]]:
    """Return the actions of the reference solution, in order."""
    return rows(criteria_of(task), "actions")


def golden_databases(domain: str, task: JsonObject) -> Tau2Databases:
    """Return the databases after the golden actions; those that fail are passed over, as in tau2-bench."""
    initial = task.get("initial_state")
    databases = Tau2Databases.of(domain, initial if isinstance(initial, Mapping) else None)
    for action in golden_actions(task):
        try:
            databases.run(side_of(action), action["name"], action["arguments"])
        except ToolError:
            continue
    return databases


def side_of(action: Mapping[str, Any]) -> Any:
    return action.get("requestor") or "assistant"


def compute_parts(
    domain: str, task: JsonObject, databases: Tau2Databases, agent_texts: Sequence[str]
) -> dict[str, float]:
    """Return each part of the reward by its name, 0 or 1."""
    criteria = criteria_of(task)
    values: dict[str, float] = {}
    for name in criteria.get("reward_basis") or DEFAULT_BASIS:
        match name:
            case "DB":
                holds = not databases.differs_from(golden_databases(domain, task))
            case "COMMUNICATE":
                heard = [text.lower().replace(",", "") for text in agent_texts]
                required_texts = criteria.get("communicate_info") or []
                holds = all(any(item.lower() in text for text in heard) for item in required_texts)
            case "ENV_ASSERTION":
                holds = all(databases.holds(item) for item in rows(criteria, "env_assertions"))
            case _:
                assert name == "ACTION", "the only other part in use"
                holds = all(_was_called(action, databases) for action in golden_actions(task))
        values[name.lower()] = float(holds)
    return values


def compute_reward(domain: str, task: JsonObject, databases: Tau2Databases, agent_texts: Sequence[str]) -> Scored:
    """Return the product of the parts, with each of them as a component."""
    values = compute_parts(domain, task, databases, agent_texts)
    return Scored(value=float(all(values.values())), components=values)


def _was_called(action: Mapping[str, Any], databases: Tau2Databases) -> bool:
    """Tell whether a golden action was called, by either side, with the arguments that count: by default all given."""
    for _, name, written in databases.called:
        called_with = json.loads(written)
        counted = action.get("compare_args")
        keys = called_with.keys() if counted is None else counted
        expected = action["arguments"]
        if name == action["name"] and all(called_with.get(key) == expected.get(key) for key in keys):
            return True
    return False
