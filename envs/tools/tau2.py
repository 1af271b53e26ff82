"""Customer service in an airline, a store or a telephone company, with a user to talk to: `tools/tau2-v0`."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from envgym.authoring import ListTasks
from envgym.core.json_types import JsonObject, content_hash, well_formed
from envgym.core.messages import Action, Message, Role
from envgym.core.tasks import Split, Task
from envgym.env import Env
from envgym.envs.tools._tau2 import grading, source
from envgym.envs.tools._tau2.databases import Called, Tau2Databases, agent_tools, phone_tools
from envgym.envs.tools._tau2.phone import asking
from envgym.envs.tools._tau2.user import GREETING, OUT_OF_SCOPE, STOP, TRANSFER, ScriptedUser, spoken
from envgym.errors import PartyFailure, check_known
from envgym.parsing import parse_action, tool_call_action
from envgym.party import Party
from envgym.records import Reply
from envgym.tools import Tool, run_calls

CHANCE = MappingProxyType({"airline": 13 / 30, "retail": 5 / 74, "telecom": 0.0})
"""Share of tasks that are solved by doing nothing, in the split where it is higher: the request must be refused."""
MAX_PHONE_TURNS = 10
"""Times that the user may use the phone before saying something."""
_WHERE = "tools/tau2-v0"
_HAND_OVER = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
_ROLE = (
    "You serve customers. Keep to the policy below. In each message either call tools or speak to the customer; the "
    "customer does not see your calls. The customer ends the conversation."
)
_USER_ROLE = (
    "You are a customer who talks to a service agent. Play the scenario below: one short message at a time, in your "
    "own words, telling things when they are asked for, and inventing nothing. When what you want is done, or cannot "
    f"be done, end with {STOP}. When you are handed to a human, say {TRANSFER}. If the scenario does not tell enough "
    f"to go on, say {OUT_OF_SCOPE}."
)


@dataclass(frozen=True, slots=True)
class Tau2State:
    """The databases, and the conversation as the user has it."""

    databases: Tau2Databases
    heard: tuple[Message, ...]
    """What the agent said is of role USER, what the user said ASSISTANT; the agent's calls are not among them."""

    @property
    def agent_texts(self) -> tuple[str, ...]:
        """What the agent has said to the user."""
        return tuple(message.content for message in self.heard if message.role is Role.USER)[1:]


class Tau2(Env[Tau2State]):
    """Calls go to the tools, words to the user, whose end of the conversation is the end of the episode."""

    def __init__(
        self,
        *,
        domain: str = "retail",
        max_turns: int | None = 100,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the domain; `parties={"user": ...}` lets a policy play the user, who is scripted otherwise.

        Args:
            domain: airline, retail or telecom.
            max_turns: Turns until the episode is cut, which pays nothing.
            **options: As in `Env`.

        Raises: UnknownName: no such domain. InvalidInput: the wheel with the data is not installed.
        """
        check_known("domain", domain, source.DOMAINS, where=_WHERE)
        source.check_installed()
        super().__init__(max_turns=max_turns, **options)
        self.domain = domain
        self.chance_score = CHANCE[domain]
        self.blocking = "user" in self.parties
        self.system_prompt = f"{_ROLE}\n\n{source.policy(domain)}"
        self.tasks = _all_tasks(domain)

    def begin(self, task: Task) -> str:
        """Prepare the databases, and let the user speak first."""
        self._raw = _raw_task(self.domain, str(task.payload["task"]))
        scenario = _scenario(self._raw)
        initial = self._raw.get("initial_state")
        databases = Tau2Databases.of(self.domain, initial if isinstance(initial, Mapping) else None)
        seed = int(self.np_random.integers(2**31))
        self._user: Party = self.parties.get("user") or ScriptedUser(scenario, seed=seed, has_phone=self._has_phone)
        role = Message(role=Role.SYSTEM, content=_user_prompt(self._raw, has_phone=self._has_phone))
        self.state = Tau2State(databases, (role, Message(role=Role.USER, content=GREETING)))
        return self._answer_of_user()

    @property
    def _has_phone(self) -> bool:
        return self.domain == "telecom"

    def toolset(self) -> Mapping[str, Tool]:
        return agent_tools(self.domain)

    def tool_owner(self) -> object:
        return self.state.databases

    def respond(self, action: Action) -> Reply:
        """Let the user answer; grade when the user ends the conversation."""
        self._hear(Message(role=Role.USER, content=well_formed(action.content).strip() or "..."))
        text = self._answer_of_user()
        if not any(mark in text for mark in (STOP, TRANSFER, OUT_OF_SCOPE)):
            return Reply(observation=text)
        for mark in (STOP, TRANSFER, OUT_OF_SCOPE):
            text = text.replace(mark, "").strip()
        reward = grading.compute_reward(self.domain, self._raw, self.state.databases, self.state.agent_texts)
        return Reply(observation=text, reward=reward, terminated=True)

    def _answer_of_user(self) -> str:
        """Return the user's next message, after using the phone if it is asked for. Raises: PartyFailure."""
        for _ in range(MAX_PHONE_TURNS):
            message = self._user.reply(self.state.heard)
            calls = message.tool_calls
            if not calls and self._has_phone:
                calls = parse_action(message.content).tool_calls
            self._hear(replace(message, role=Role.ASSISTANT, tool_calls=calls))
            if not calls:
                return message.content
            for answer in run_calls(phone_tools(), self.state.databases, Action(tool_calls=calls)).messages:
                self._hear(answer)
        raise PartyFailure(f"the user used the phone {MAX_PHONE_TURNS} times without a word")

    def _hear(self, message: Message) -> None:
        self.state = Tau2State(self.state.databases, (*self.state.heard, message))

    def fork_state(self) -> Tau2State:
        """Fork the databases, which are shared until they change, and share the conversation."""
        return Tau2State(self.state.databases.fork(), self.state.heard)

    # ---- the oracle ------------------------------------------------------------------------------------------------

    def oracle(self) -> str:
        """Ask, make the golden actions (the user's by asking for them), and tell what is to be told."""
        agent_texts = self.state.agent_texts
        if not agent_texts:
            return "I am glad to help. Who are you, and what else do I need to know?"
        action = _next_action(grading.golden_actions(self._raw), self.state.databases.called)
        if action is not None:
            return self._towards(action, agent_texts)
        if any(name == "transfer_to_human_agents" for _, name, _ in self.state.databases.called):
            return _HAND_OVER
        required_texts = grading.criteria_of(self._raw).get("communicate_info") or []
        facts = "; ".join(required_texts)
        news = f" For your information: {facts}." if facts and not any(facts in text for text in agent_texts) else ""
        return f"Everything that is possible is done.{news} Is there anything else I can do for you?"

    def _towards(self, action: Mapping[str, Any], agent_texts: tuple[str, ...]) -> str:
        name, arguments = action["name"], action["arguments"]
        if grading.side_of(action) == "user":
            return asking(name, arguments)
        is_change = not self._has_phone and not name.startswith(
            ("get_", "find_", "search_", "list_", "calc", "transfer_")
        )
        if is_change and not any("(yes/no)" in text for text in agent_texts):
            changes = [
                f"{item['name']}({json.dumps(item['arguments'])})"
                for item in grading.golden_actions(self._raw)
                if not item["name"].startswith(("get_", "find_", "search_", "list_", "calc", "transfer_"))
            ]
            return f"I would make these changes: {'; '.join(changes)}. Do you agree (yes/no)?"
        return tool_call_action(name, **arguments)


def _next_action(golden: list[dict[str, Any]], called: tuple[Called, ...]) -> dict[str, Any] | None:
    left = Counter(called)
    for action in golden:
        key = (grading.side_of(action), action["name"], json.dumps(action["arguments"], sort_keys=True))
        if not left[key]:
            return action
        left[key] -= 1
    return None


# ---- tasks --------------------------------------------------------------------------------------------------------


@cache
def _all_tasks(domain: str) -> ListTasks:
    """Return the tasks of the official splits; nobody changes them, so all envs may share them."""
    return ListTasks([_task(domain, raw, split) for split in Split for raw in source.raw_tasks(domain)[split]])


def _task(domain: str, raw: JsonObject, split: Split) -> Task:
    return Task(
        id=str(raw["id"]),
        prompt=" ".join(["Hello.", *spoken(_scenario(raw).get("reason_for_call"))]),
        payload={"domain": domain, "task": str(raw["id"]), "content": content_hash(raw)},
        split=split,
        metadata={"domain": domain, "actions": len(grading.golden_actions(raw))},
    )


@cache
def _raw_task(domain: str, name: str) -> JsonObject:
    return next(raw for split in Split for raw in source.raw_tasks(domain)[split] if raw["id"] == name)


def _scenario(raw: JsonObject) -> Mapping[str, Any]:
    scenario = raw["user_scenario"]
    assert isinstance(scenario, Mapping), "as the wheel's files are written"
    instructions = scenario["instructions"]
    assert isinstance(instructions, Mapping), "so in all three domains"
    return instructions


def _user_prompt(raw: JsonObject, *, has_phone: bool) -> str:
    scenario = raw["user_scenario"]
    assert isinstance(scenario, Mapping), "as the wheel's files are written"
    parts = [_USER_ROLE, *([f"Persona: {scenario['persona']}"] if scenario.get("persona") else [])]
    parts += [f"{name.replace('_', ' ')}: {text}" for name, text in _scenario(raw).items() if text]
    if has_phone:
        tools = [{"name": item.spec.name, "description": item.spec.description} for item in phone_tools().values()]
        form = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
        parts.append(f"You can use your phone by {form} when the agent asks for it. Tools: {json.dumps(tools)}")
    return "\n\n".join(parts)
