"""A task of inspect-ai as an environment, by the id `inspect://package/task` or `inspect://file.py@task`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envgym.authoring.openings import prompt_text, system_text
from envgym.config.arguments import read_bounds
from envgym.core.json_types import JsonObject, canonical
from envgym.core.messages import Action, Observation, Role
from envgym.core.tasks import TEST_FRACTION, Task
from envgym.core.turns import Ending, Invalid, Reward, Scored
from envgym.env import Env, ForkCapability
from envgym.errors import EnvFailure, InvalidInput, check_known
from envgym.party import Party
from envgym.records import Reply, StepRecord
from envgym.runtime.cache import source_key
from envgym.tools import Tool, ToolSpec

if TYPE_CHECKING:  # of the extra `inspect`
    from envgym.connect.inspect_load import LoadedTask
    from envgym.connect.inspect_sample import Outcome, SampleRun

SCHEME: Final = "inspect://"
MAX_TURNS: Final = 100
"""Turns unless the settings say otherwise."""
GRADER: Final = "grader"
"""Name of the party that grades answers."""
_VALUES: Final[Mapping[str, float]] = {
    "C": 1.0,
    "P": 0.5,
    "I": 0.0,
    "N": 0.0,
    "yes": 1.0,
    "true": 1.0,
    "no": 0.0,
    "false": 0.0,
}
"""Texts by which scorers give a value: correct, partial, incorrect, no answer, and words."""
_UNKNOWN = "the task is of another project, which does not declare it"


class InspectEnv(Env[None]):
    """A task of inspect-ai: its solver writes the prompt, the agent answers, its scorers pay."""

    blocking = True
    unchecked = {  # noqa: RUF012  # a constant of the class
        "oracle_reaches_optimum": _UNKNOWN,
        "chance_stays_at_declared": _UNKNOWN,
        "survives_pickle": "a running solver cannot be copied",
    }

    def __init__(
        self,
        env_id: str,
        /,
        *,
        task_args: Mapping[str, Any] | None = None,
        scorer: str | None = None,
        value: str | None = None,
        test_share: float = TEST_FRACTION,
        reward_range: Sequence[float] = (0.0, 1.0),
        deterministic: bool = False,
        timeout_s: float = 60.0,
        max_turns: int | None = MAX_TURNS,
        parties: Mapping[str, Party] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Make the task, and try its first sample.

        Args:
            env_id: `inspect://` and `package/task`, or `file.py@task`.
            task_args: arguments of the task's function.
            scorer: the scorer that pays, where there are several; the others are components of the reward.
            value: the entry that pays, where the value of a score is a mapping.
            test_share: share of the samples in the split `test`; 1 puts all of them there.
            reward_range: bounds of the reward of an episode, which `envgym check` tests.
            deterministic: whether the same sample and actions give the same episode, so that forks can replay it.
            timeout_s: longest wait for the solver, a tool or the scorers, in seconds.
            max_turns: turns until the episode is cut; None: no limit.
            parties: `grader` answers scorers that call a model.
            render_mode: as for any env.

        Raises: InvalidInput: there is no such task, it does what an environment cannot run, or a setting is wrong.
        """
        if find_spec("inspect_ai") is None:
            do = "pip install 'envgym[inspect]'"
            raise InvalidInput.of(env_id, "find what it imports", "no inspect_ai", where="make", do=do)
        if not timeout_s > 0:
            raise InvalidInput.of("timeout_s", "be above 0", timeout_s, where=env_id, do="pass e.g. 60")
        super().__init__(max_turns=max_turns, parties=parties, render_mode=render_mode)
        self.reward_range = read_bounds("reward_range", reward_range, where=env_id)
        self._id, self._timeout_s, self._value = env_id, timeout_s, value
        self._loaded = _loaded(_Settings.read(env_id, task_args or {}, test_share, timeout_s))
        self._scorer = _choose_scorer(self._loaded.scorers, scorer, env_id)
        if self._loaded.needs_grader and GRADER not in self.parties:
            must, do = "have a model to ask", "name it: parties: {grader: {name: endpoint, base_url: ..., model: ...}}"
            raise InvalidInput.of(f"scorer {self._scorer}", must, "no grader", where=env_id, do=do)
        fork_capability = ForkCapability.REPLAY if deterministic else ForkCapability.NONE
        self.fork_capability = fork_capability  # type: ignore[misc]  # of each env
        self.tasks = self._loaded.tasks
        self._run: SampleRun | None = None
        self._tools: tuple[ToolSpec, ...] = ()
        self._action = Action()

    def begin(self, task: Task) -> Observation:
        """Run the solver until it calls the model, and show what the model would be shown."""
        from envgym.connect.inspect_sample import ModelCall, SampleRun

        sample = self._loaded.samples.get(task.key)
        if sample is None:
            do = "take one from env.unwrapped.tasks"
            raise InvalidInput.of("task", "be a sample of the task", task.id, where=self._id, do=do)
        self.close()
        self.state = None
        self._run = SampleRun(
            self._loaded.task,
            sample,
            grader=self.parties.get(GRADER),
            timeout_s=self._timeout_s,
            where=self._id,
        )
        request = self._run.begin()
        assert isinstance(request, ModelCall), "a solver that calls no model is refused"
        self._tools = request.tools
        self.system_prompt = system_text(request.messages)
        spoken = [message for message in request.messages if message.role is not Role.SYSTEM]
        return Observation(prompt_text(request.messages), spoken)

    def respond(self, action: Action) -> Reply:
        """Give the solver the answer, and score it."""
        return self._reply_to(self._running().reply(action))

    def _play(self, action: Action) -> StepRecord:
        self._action = action
        return super()._play(action)

    def toolset(self) -> Mapping[str, Tool]:
        """Return the tools of the sample; none before an episode."""
        return {spec.name: _tool(spec) for spec in self._tools}

    def after_tools(self, observation: Observation) -> Reply:
        """Give the solver the calls and their results."""
        reply = self._reply_to(self._running().reply(self._action, observation.messages))
        return Reply(observation=observation, reward=reply.reward, terminated=reply.terminated)

    def run_tool(self, name: str, arguments: JsonObject) -> str:
        """Run a tool of the task. Raises: ToolError: it refuses."""
        return self._running().call(name, arguments)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _running(self) -> "SampleRun":
        if self._run is None:
            raise EnvFailure.of("turn", "be played before close", "a closed env", where=self._id, do="reset it")
        return self._run

    def _reply_to(self, outcome: "Outcome") -> Reply:
        scores = getattr(outcome, "by_name", None)
        if scores is None:
            return Reply()
        self.close()
        return Reply(reward=reward_of(scores, self._scorer, self._value, where=self._id), terminated=True)


@dataclass(frozen=True, slots=True)
class _Settings:
    """What decides the task."""

    env_id: str
    task_args: str
    """JSON."""
    test_share: float
    timeout_s: float
    file: str
    """Digest of path, size and time of the file: a changed one is read again."""

    @classmethod
    def read(cls, env_id: str, task_args: Mapping[str, Any], test_share: float, timeout_s: float) -> "_Settings":
        """Raises: InvalidInput: the arguments are no JSON, or the share is no share."""
        if not 0.0 <= test_share <= 1.0:
            raise InvalidInput.of("test_share", "lie in [0, 1]", test_share, where=env_id, do="pass e.g. 0.2")
        try:
            written = canonical(dict(task_args))
        except (TypeError, ValueError) as error:
            do = "pass a mapping of names to JSON values"
            raise InvalidInput.of("task_args", "have a form in JSON", str(error), where=env_id, do=do) from error
        place = env_id.removeprefix(SCHEME).rpartition("@")[0]
        return cls(env_id, written, test_share, timeout_s, source_key(place) if Path(place).is_file() else "")


@lru_cache(maxsize=8)
def _loaded(settings: _Settings) -> "LoadedTask":
    """Make a task; nobody changes it, so envs share it."""
    from envgym.connect.inspect_load import load

    return load(
        settings.env_id.removeprefix(SCHEME),
        json.loads(settings.task_args),
        test_share=settings.test_share,
        timeout_s=settings.timeout_s,
        where=settings.env_id,
    )


def _choose_scorer(names: Sequence[str], name: str | None, where: str) -> str:
    """Return the name of the scorer that pays. Raises: InvalidInput: there are several, or none of this name."""
    if name is not None:
        check_known("scorer", name, names, where=where)
        return name
    if len(names) > 1:
        do = f"pass scorer={names[0]}"
        raise InvalidInput.of("scorer", "name the one that pays", ", ".join(names), where=where, do=do)
    return names[0]


def _tool(spec: ToolSpec) -> Tool:
    def call(owner: object, arguments: JsonObject) -> object:
        assert isinstance(owner, InspectEnv), "the tools are its own"
        return owner.run_tool(spec.name, arguments)

    return Tool(spec=spec, call=call)


# ---- scores as rewards -----------------------------------------------------------------------------------------------


def reward_of(scores: Mapping[str, Any], paying: str, key: str | None, *, where: str) -> Reward:
    """Return the reward of a sample.

    Args:
        scores: name of a scorer -> its score, or None.
        paying: name of the scorer that pays.
        key: entry of its value, where that is a mapping.
        where: names the environment in errors.

    Returns: the value, with the values of all scores as components; invalid where the paying score is missing, unscored
        or no number.
    """
    score = scores[paying]
    value = None if score is None else score.value
    if isinstance(value, Mapping):
        value = value.get(key) if key is not None else dict(value)
    number = number_of(value)
    if number is None:
        must, do = "be a number, or one of C, P, I and N", "correct the scorer, or name an entry of its value by value"
        got = repr(value) if score is None or not score.explanation else f"{value!r}: {score.explanation}"
        reason = EnvFailure.of(f"score of {paying}", must, got, where=where, do=do)
        return Invalid(cause=Ending.ERROR_ENV, reason=str(reason))
    return Scored(value=number, components=dict(_components(scores)))


def _components(scores: Mapping[str, Any]) -> Mapping[str, float]:
    parts: dict[str, float] = {}
    for name, score in scores.items():
        value = None if score is None else score.value
        values = {f"{name}/{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
        parts |= {key: number for key, item in values.items() if (number := number_of(item)) is not None}
    return parts


def number_of(value: object) -> float | None:
    """Return the number that a value of a score stands for; None: it is none, or not finite."""
    if isinstance(value, str):
        if value in _VALUES or value.lower() in _VALUES:
            return _VALUES.get(value, _VALUES.get(value.lower()))
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None
