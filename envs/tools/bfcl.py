"""Call the right functions with the right arguments: the Berkeley Function Calling Leaderboard, `tools/bfcl-v0`."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from envgym.authoring import ListTasks
from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.messages import Action, Observation, Role, ToolCall
from envgym.core.tasks import Split, Task
from envgym.core.turns import Scored
from envgym.env import Env
from envgym.envs.tools._bfcl import source
from envgym.envs.tools._bfcl.answers import expected_calls, right_calls, tool_name, tool_spec
from envgym.envs.tools._bfcl.apis import BfclApis, GoldenRun, golden_calls, golden_run
from envgym.envs.tools._bfcl.source import KINDS, NO_CALL, WHERE, CallQuestion
from envgym.errors import ToolError, check_known
from envgym.parsing import parse_action, tool_call_action
from envgym.records import Reply
from envgym.tools import MAX_CALLS, Tool, ToolSpec
from envgym.verifiers.tool_call import CallMatch, ExpectedCall, match_calls

REWARDS = ("exact", "toolrl")
MAX_STEPS = 20
"""Messages with calls in one turn of the user; a further one ends the episode, as at the leaderboard."""
MAX_RESULT = 200_000
"""Characters of an answer; the longest in a long context has more than 20,000."""
_MIN_LETTERS = 4
_ONE_MESSAGE = (
    "Answer the user by calling the functions that the message asks for, all of them in one message: nothing is run, "
    "and your first message is what counts. If no function fits, or a value that a function needs is not given, call "
    "none and say so."
)
_CONVERSATION = (
    "Do what the user asks by calling functions; you are shown what they return. When a request is done, or cannot be "
    "done with the functions and the values that you have, say so in a message without a call: then the user goes on. "
    "Change nothing that was not asked for."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BfclState:
    """The calls so far, and the instances that they were made on."""

    apis: BfclApis | None = None
    """None in a single-turn question, where nothing is run."""
    turn: int = 0
    """Of the user."""
    calls: tuple[ToolCall, ...] = ()
    """In this turn of the user."""
    num_malformed: int = 0
    """Calls of this turn that could not be read."""
    num_steps: int = 0
    """Messages with calls in this turn."""
    answers: tuple[str, ...] = ()
    """What all calls of the episode were answered."""
    num_right: int = 0
    """Turns that ended as they should."""
    score: float = 0.0
    """Sum of the scores of ended turns."""


class Bfcl(Env[BfclState]):
    """Single-turn: the first message is compared. Multi-turn: calls are run, words give the turn back to the user."""

    def __init__(
        self,
        *,
        kinds: str | Sequence[str] = KINDS,
        reward: str = "exact",
        max_turns: int | None = 100,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the questions.

        Args:
            kinds: Categories of the leaderboard: simple_python, multiple, parallel, parallel_multiple, irrelevance,
                live_simple, live_multiple, live_parallel, live_parallel_multiple, live_irrelevance, multi_turn_base,
                multi_turn_miss_func, multi_turn_miss_param, multi_turn_long_context: one or several.
            reward: `exact` pays 1 for a right answer as the leaderboard counts it; `toolrl` pays parts, for names,
                arguments and values, in multi-turn questions the mean over the turns of the user.
            max_turns: Turns until the episode is cut, which pays nothing.
            **options: As in `Env`.

        Raises: UnknownName: no such kind or reward. InvalidInput: the wheel with the data is not installed.
        """
        names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for kind in names or ("",):
            check_known("kind", str(kind), KINDS, where=WHERE)
        check_known("reward", reward, REWARDS, where=WHERE)
        source.check_installed()
        super().__init__(max_turns=max_turns, **options)
        self.kinds, self.reward = tuple(kind for kind in KINDS if kind in names), reward
        self.tasks = _load_tasks(self.kinds)
        self.chance_score = _chance(self.kinds, reward)

    def begin(self, task: Task) -> str:
        item = _question(task)
        self.state = BfclState(apis=_golden(item).start.fork() if item.is_multi_turn else None)
        system_texts = [str(message["content"]) for message in item.turns[0] if message["role"] == Role.SYSTEM]
        self.system_prompt = "\n\n".join([_CONVERSATION if item.is_multi_turn else _ONE_MESSAGE, *system_texts])
        return task.prompt

    def toolset(self) -> Mapping[str, Tool]:
        """Return the functions of the question, also those that have been added; none before an episode."""
        if self._task is None:
            return {}
        payload = self._task.payload
        return _tools(str(payload["kind"]), str(payload["question"]), self.state.turn)

    def run_function(self, name: str, arguments: JsonObject) -> str:
        """Note a call, and run it in a multi-turn question. Raises: ToolError: it fails."""
        apis, call = self.state.apis, ToolCall(name=name, arguments=arguments)
        self.state = replace(self.state, calls=(*self.state.calls, call))
        if apis is None:
            return "Noted."
        text, failed = apis.run(name, arguments)
        self.state = replace(self.state, answers=(*self.state.answers, text))
        if failed:
            raise ToolError(text)
        return text

    def after_tools(self, observation: Observation) -> Reply:
        """Grade the calls of a single turn; else show what they were answered."""
        messages, tools, state = observation.messages, self.toolset(), self.state
        others = [
            ToolCall(name=message.name)
            for place, message in enumerate(messages)
            if message.name is not None and (message.name not in tools or place >= MAX_CALLS)
        ]
        malformed = sum(message.name is None for message in messages)
        self.state = replace(
            state,
            calls=(*state.calls, *others),
            num_malformed=state.num_malformed + malformed,
            num_steps=state.num_steps + 1,
        )
        if not _question(self.task).is_multi_turn:
            return self._graded()
        if self.state.num_steps > MAX_STEPS:
            return self._end(f"The user has left: {MAX_STEPS} messages with calls and no answer.", is_right=False)
        return Reply(observation=observation)

    def respond(self, action: Action) -> Reply:
        """Grade the turn of the user that a message without a call ends, and let the user go on."""
        item = _question(self.task)
        if not item.is_multi_turn:
            return self._graded(says_why=has_words(action.content) and not _holds_call(action.content, item))
        is_right, score = self._is_right(item), self._match(item).score()
        state = replace(self.state, score=self.state.score + score, num_right=self.state.num_right + is_right)
        self.state = replace(state, turn=state.turn + 1, calls=(), num_malformed=0, num_steps=0)
        if self.reward == "exact" and not is_right:
            return self._end("That is not what was asked for.", is_right=False)
        if self.state.turn == len(item.turns):
            solved = self.state.num_right == len(item.turns)
            return self._end("All as asked." if solved else "That is not all that was asked for.", is_right=solved)
        return Reply(observation=_spoken(item, self.state.turn))

    def _graded(self, *, says_why: bool = True) -> Reply:
        """Grade the calls of a single-turn question; a message without a call must say why in words."""
        if not says_why:
            parts = dict.fromkeys(("solved", "names", "keys", "values", "format"), 0.0)
            text = "There is no call in it, and no sentence that says why."
            return Reply(observation=text, reward=Scored(value=0.0, components=parts), terminated=True)
        match = self._match(_question(self.task))
        is_right = match.correctness == 1.0 and not self.state.num_malformed
        parts = {"solved": float(is_right), "names": match.name, "keys": match.keys, "values": match.values}
        value = float(is_right) if self.reward == "exact" else match.score()
        text = "The calls are right." if is_right else "These are not the right calls."
        return Reply(
            observation=text, reward=Scored(value=value, components={**parts, "format": match.format}), terminated=True
        )

    def _end(self, text: str, *, is_right: bool) -> Reply:
        num_turns = len(_question(self.task).turns)
        value = float(is_right) if self.reward == "exact" else self.state.score / num_turns
        parts = {"solved": float(is_right), "turns": self.state.num_right / num_turns}
        return Reply(observation=text, reward=Scored(value=value, components=parts), terminated=True)

    def _match(self, item: CallQuestion) -> CallMatch:
        expected = _expected(item, self.state.turn)
        return match_calls(self.state.calls, expected, num_malformed=self.state.num_malformed)

    def _is_right(self, item: CallQuestion) -> bool:
        """Tell whether this turn ends as at the leaderboard: state and answers are those of the right calls."""
        golden, turn, apis = _golden(item), self.state.turn, self.state.apis
        assert apis is not None, "a multi-turn question"
        if not golden.answers[turn]:
            return True  # what was done in vain shows in the state after the next turn
        missing = Counter(golden.answers[turn]) - Counter(self.state.answers)
        return bool(self.state.calls) and not missing and not apis.differs_from(golden.after[turn])

    def fork_state(self) -> BfclState:
        """Fork the instances, which are shared until they change."""
        apis = self.state.apis
        return self.state if apis is None else replace(self.state, apis=apis.fork())

    def oracle(self) -> str:
        """Make the right calls: all at once in a single turn, else the next one."""
        item = _question(self.task)
        if not item.is_multi_turn:
            calls = right_calls(item.kind, item.id)
            assert calls is not None, "such questions are left out"
            return _said(calls) if calls else "No function that I have fits."
        golden, counts = golden_calls(item.kind, item.id)[self.state.turn], Counter(map(_call_text, self.state.calls))
        left = []
        for call in golden:
            counts[_call_text(call)] -= 1
            left += [call] if counts[_call_text(call)] < 0 else []
        if not left:
            return "That is done." if golden else "I need another function or a value that you have not told me."
        return _said(left if len(golden) > MAX_STEPS else left[:1])


def _holds_call(text: str, item: CallQuestion) -> bool:
    """Tell whether a text calls a function, by its name in the question or by that of its tool, as Python code."""
    if "(" not in text:
        return False
    names = [str(document["name"]) for document in item.functions]
    return any(f"{name}(" in text for name in (*names, *(name.replace(".", "_") for name in names)))


def has_words(text: str) -> bool:
    """Tell whether a text is words in some script: of what is no space, most are letters, of which four differ."""
    signs = "".join(text.split())
    letters = "".join(filter(str.isalpha, signs.lower()))
    return 2 * len(letters) > len(signs) and len(set(letters)) >= _MIN_LETTERS


def _said(calls: Sequence[ToolCall]) -> Action:
    return parse_action("\n".join(tool_call_action(call.name, **call.arguments) for call in calls))


def _call_text(call: ToolCall) -> str:
    return f"{call.name} {json.dumps(call.arguments, sort_keys=True)}"


def _golden(item: CallQuestion) -> GoldenRun:
    return golden_run(item.kind, item.id)


# ---- questions ----------------------------------------------------------------------------------------------------


def _question(task: Task) -> CallQuestion:
    return source.question(str(task.payload["kind"]), str(task.payload["question"]))


@cache
def _load_tasks(kinds: tuple[str, ...]) -> ListTasks:
    """Return the tasks of some kinds, mixed by their hashes; nobody changes them, so all envs may share them."""
    mixed: list[Task] = sorted((task for kind in kinds for task in _tasks_of(kind)), key=lambda task: task.key)
    return ListTasks(mixed)


@cache
def _tasks_of(kind: str) -> tuple[Task, ...]:
    return tuple(
        Task(
            id=item.id,
            prompt=_spoken(item, 0),
            payload={"kind": kind, "question": item.id, "content": item.key},
            split=source.split_of_question(item),
            metadata={"kind": kind, "turns": len(item.turns), "functions": len(item.functions)},
        )
        for item in source.questions(kind)
        if _is_solvable(item)
    )


def _is_solvable(item: CallQuestion) -> bool:
    """Tell whether the right calls are right by the question's own rules, and of functions that are there by then."""
    if not item.is_multi_turn:
        return right_calls(item.kind, item.id) is not None
    for turn, calls in enumerate(golden_calls(item.kind, item.id)):
        names = {tool_name(str(document["name"])) for document in _functions(item, turn)}
        if not all(call.name in names for call in calls):
            return False
    return True


def _functions(item: CallQuestion, turn: int) -> list[JsonObject]:
    """Return the documents of the functions that there are at a turn."""
    return [*item.functions, *(part for start, more in item.added.items() if start <= turn for part in more)]


def _spoken(item: CallQuestion, turn: int) -> str:
    """Return the user's text: the message, or a conversation written out, or which functions there are now."""
    if added := item.added.get(turn):
        specs = [tool_spec(document) for document in added]
        lines = [json.dumps({"name": s.name, "description": s.description, "parameters": s.parameters}) for s in specs]
        return "\n".join(["There are more functions now. Can you go on with them?", *lines])
    messages = [message for message in item.turns[turn] if message["role"] != Role.SYSTEM]
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


@cache
def _tools(kind: str, name: str, turn: int) -> Mapping[str, Tool]:
    return {spec.name: _tool(spec) for spec in map(tool_spec, _functions(source.question(kind, name), turn))}


def _tool(spec: ToolSpec) -> Tool:
    def call(owner: object, arguments: JsonObject) -> object:
        assert isinstance(owner, Bfcl), "the env is its tools' owner"
        return owner.run_function(spec.name, arguments)

    return Tool(spec=spec, call=call, max_chars=MAX_RESULT)


def _expected(item: CallQuestion, turn: int) -> tuple[ExpectedCall, ...]:
    if not item.is_multi_turn:
        return expected_calls(item.kind, item.id)
    return tuple(map(ExpectedCall.equal_to, golden_calls(item.kind, item.id)[turn]))


# ---- chance -------------------------------------------------------------------------------------------------------


@cache
def _chance(kinds: tuple[str, ...], reward: str) -> float:
    """Return the mean reward of never calling, or of calling the first function, in the split where it is higher."""
    means = [0.0]
    for split in Split:
        tasks = [task for kind in kinds for task in _tasks_of(kind) if task.split is split]
        makers = (_no_calls, _first_call) if reward == "toolrl" else (_no_calls,)
        for maker in makers if tasks else ():
            means.append(sum(_reward_of(maker, _question(task), reward) for task in tasks) / len(tasks))
    return max(means)


def _reward_of(maker: Callable[[CallQuestion], list[ToolCall]], item: CallQuestion, reward: str) -> float:
    if reward == "exact":
        return float(item.kind in NO_CALL and not maker(item))
    scores = [match_calls(maker(item), _expected(item, turn)).score() for turn in range(len(item.turns))]
    return sum(scores) / len(scores)


def _no_calls(item: CallQuestion) -> list[ToolCall]:
    return []


_GUESSES: Mapping[str, JsonValue] = {"boolean": True, "integer": 1, "number": 1, "array": [], "object": {}}


def _first_call(item: CallQuestion) -> list[ToolCall]:
    calls = []
    for spec in map(tool_spec, item.functions[:1]):
        properties = spec.parameters["properties"]
        assert isinstance(properties, Mapping), "checked when it was read"
        arguments = {key: _guess(schema) for key, schema in properties.items()}
        calls.append(ToolCall(name=spec.name, arguments=arguments))
    return calls


def _guess(schema: JsonValue) -> JsonValue:
    assert isinstance(schema, Mapping), "checked when it was read"
    options = schema.get("enum")
    return options[0] if isinstance(options, list) and options else _GUESSES.get(str(schema.get("type")), "none")
