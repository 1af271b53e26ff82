"""Environments of envgym as tasks of inspect-ai, whose registry knows them as `envgym/env`.

Only inspect-ai imports this module, by an entry point. The outcome of an episode is kept in the store of its sample, so
that a log can be scored again.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from inspect_ai import Task, task
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo
from inspect_ai.util import LimitExceededError

from envgym.authoring.openings import opening_messages
from envgym.connect.inspect_messages import action_of, replies_of, to_inspect, tool_infos
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split
from envgym.core.turns import Ending, Invalid, Scored
from envgym.errors import InfrastructureError, InvalidInput
from envgym.played import EpisodeResult, Opening, PlayedEpisode, outcome
from envgym.registry import maker
from envgym.wrappers import AnyEnv

ENDLESS_LIMIT: Final = 100
"""Samples of an environment whose tasks do not end."""
RESULT: Final = "envgym_result"
"""Key of the store under which the outcome of the episode is kept."""
_CUT: Final = ("max_tokens", "model_length")
"""Reasons for which a reply ended that mean that it was cut; it is not played."""
_LATE: Final = Invalid(cause=Ending.ERROR_ENV, reason="The sample was ended while the environment played a turn.")

T = TypeVar("T")


@task  # type: ignore[untyped-decorator]  # inspect-ai is not installed everywhere
def env(
    env: str,
    split: str = "test",
    limit: int | None = None,
    settings: Any = None,  # as a command line has it
    seed: int = 0,
) -> Task:
    """Return an environment as a task; each of its tasks is a sample.

    Args:
        env: id of the environment, as in `envgym.make`.
        split: the split that tasks are of.
        limit: number of samples; None: all tasks of the split, or 100 where they do not end.
        settings: keyword arguments of the environment, by name.
        seed: seed of the first episode; each further one has the next number.

    Raises: PrerequisiteError: no such environment, split or setting, or the split has fewer tasks.
    """
    try:
        part = Split.parse(split, where=env)
        if settings is not None and not isinstance(settings, dict):
            do = "write them as in -T 'settings={level: 2}'"
            raise InvalidInput.of("settings", "be a mapping of names to values", settings, where=env, do=do)
        with closing(maker(env)(**(settings or {}))) as instance:
            samples = _samples(instance, env, part, limit, seed)
    except InvalidInput as error:
        raise PrerequisiteError(str(error)) from error  # which the command line shows as a sentence
    name = env.rstrip("/").rpartition("/")[2]
    return Task(
        dataset=samples, solver=play(env, settings), scorer=reward(), name=f"envgym_{name}", metadata={"env": env}
    )


def _samples(instance: AnyEnv, env_id: str, split: Split, limit: int | None, seed: int) -> list[Sample]:
    """Return the samples: what an agent reads at first, and where the task is; no answers."""
    source = instance.unwrapped.tasks
    size = source.size(split)
    count = limit if limit is not None else ENDLESS_LIMIT if size is None else size
    if count < 1 or (size is not None and count > size):
        bounds = "be at least 1" if size is None else f"be between 1 and {size}, the tasks of {split}"
        raise InvalidInput.of("limit", bounds, count, where=env_id, do="choose another limit or split")
    samples = []
    for index in range(count):
        item = source.task(split, index)
        messages = [to_inspect(message) for message in opening_messages(item)]
        place = {"split": split.value, "index": index, "seed": seed + index}
        samples.append(Sample(input=messages, target="", id=item.id, metadata=place))
    return samples


@solver  # type: ignore[untyped-decorator]  # as above
def play(env: str, settings: dict[str, Any] | None = None) -> Solver:
    """Return the solver that lets the model play the episode of a sample.

    Args:
        env: id of the environment.
        settings: its keyword arguments.
    """
    make = partial(maker(env), **(settings or {}))

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        instance = await anyio.to_thread.run_sync(make)
        episode = PlayedEpisode(instance)
        try:
            await _play(state, episode, is_blocking=instance.blocking)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(episode.close)
        return state

    return solve


async def _play(state: TaskState, episode: PlayedEpisode, *, is_blocking: bool) -> None:
    """Play until the episode ends; a limit of inspect-ai is raised by the call that exceeds it."""
    place = state.metadata
    try:
        begin = partial(episode.open, split=place["split"], index=place["index"], seed=place["seed"])
        opening: Opening = await anyio.to_thread.run_sync(begin)
    except InfrastructureError:
        _keep(state, episode.result())
        return
    _keep(state, episode.result())
    state.messages = [to_inspect(message) for message in opening.messages]
    tools = tool_infos(opening.tools)
    while True:
        try:
            await _generate(state, tools)
        except LimitExceededError as error:
            if error.type == "token":
                _keep_cut(state, episode)
            raise
        if state.completed or state.output.empty:
            return
        if state.output.stop_reason in _CUT:
            _keep_cut(state, episode)
            return
        is_over = await _call(partial(play_turn, state, episode), is_blocking=is_blocking)
        if is_over:
            return
        if anyio.current_effective_deadline() <= anyio.current_time():
            _keep(state, replace(episode.result(), reward=_LATE))
            await anyio.sleep_forever()  # is cancelled


async def _generate(state: TaskState, tools: list[ToolInfo]) -> None:
    state.output = await get_model().generate(state.messages, tools=tools)
    if not state.output.empty:
        state.messages.append(state.output.message)


def play_turn(state: TaskState, episode: PlayedEpisode) -> bool:
    """Play the last message of the model, and append the reply; return whether the episode is over."""
    message = state.output.message
    turn = episode.act(action_of(message))
    _keep(state, episode.result())
    state.messages.extend(replies_of(turn.messages, message))
    return turn.ending is not None


async def _call(work: Callable[[], T], *, is_blocking: bool) -> T:
    return await anyio.to_thread.run_sync(work) if is_blocking else work()


def _keep_cut(state: TaskState, episode: PlayedEpisode) -> None:
    _keep(state, replace(episode.result(), ending=Ending.TRUNCATED_TOKENS))


def _keep(state: TaskState, result: EpisodeResult) -> None:
    state.store.set(RESULT, result_fields(result))


def result_fields(result: EpisodeResult) -> JsonObject:
    """Write the outcome of an episode, as it is kept in a log."""
    reward, fields = result.reward, {"ending": result.ending, "turns": result.num_turns, "outcome": outcome(result)}
    if isinstance(reward, Invalid):
        return {**fields, "value": None, "cause": reward.cause.value, "reason": reward.reason}
    assert isinstance(reward, Scored), "the other kind of reward"
    return {**fields, "value": reward.value, "components": dict(reward.components)}


@scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator]  # as above
def reward() -> Scorer:
    """Return the scorer that reads the reward of the episode; an invalid one is unscored, and no metric counts it."""

    async def score(state: TaskState, target: Target) -> Score:
        return score_of(state.store.get(RESULT), state.output.completion)

    return score


def score_of(fields: Mapping[str, Any] | None, answer: str) -> Score:
    """Return the score of an outcome that was kept; None: no episode was begun.

    An episode that was stopped before its first turn is unscored: the model had no chance.
    """
    if fields is None:
        return Score.unscored(reason="scoring_failed", explanation="No episode was begun.")
    value = fields["value"]
    about = {"ending": fields["ending"], "turns": fields["turns"]}
    if fields["turns"] == 0 and fields["ending"] is None:
        return Score.unscored(reason="scoring_failed", answer=answer, explanation="No turn was played.", metadata=about)
    if value is None:
        return Score.unscored(reason=fields["cause"], answer=answer, explanation=fields["reason"], metadata=about)
    return Score(
        value=value,
        answer=answer,
        explanation=f"The episode: {fields['outcome']}.",
        metadata={**about, "components": fields["components"]},
    )
