"""The check that whether a reward is valid does not depend on the answer.

If a right answer is scored and a wrong one is invalid, wrong answers vanish: success is overstated, and nothing learns
from failures. The usual cause is a key that the verifier cannot read.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

from envgym.conformance.agents import HOSTILE_TEXTS, Agent, random_actions, say
from envgym.conformance.env_under_test import CheckFailed, CheckSkipped, EnvUnderTest, ObservedEpisode, play
from envgym.core.tasks import Task
from envgym.core.turns import Invalid

MAX_TURNS = 2
"""Turns for which a text is said."""
NUM_RANDOM = 3
HOSTILE_EVERY = 20
"""Hostile texts are said on every 20th task."""


def validity_is_the_same_for_all_answers(subject: EnvUnderTest) -> str:
    """Say right, wrong, empty, random and hostile answers to each task: no reward may be invalid."""
    if not subject.played_tasks:
        raise CheckSkipped("there is no task to play")
    right = {episode.task_key: episode for episode in subject.oracle_episodes} if subject.has_oracle else {}
    count = 0
    with closing(subject.make()) as env:
        for index, task in enumerate(subject.played_tasks):
            valid: list[str] = []
            if task.key in right:
                _record("the oracle's answer", right[task.key], valid)
            for name, agent in _answers(subject, index, task, list(right.values())):
                episode = play(env, agent, seed=subject.seed + index, task=task, max_turns=MAX_TURNS)
                _record(name, episode, valid)
                count += 1
    return f"{count} answers to {len(subject.played_tasks)} tasks, and every reward is valid"


def _record(name: str, episode: ObservedEpisode, valid: list[str]) -> None:
    """Add an answer to those with a valid reward. Raises: CheckFailed: its reward is invalid."""
    invalid = next((turn.reward for turn in episode.turns if isinstance(turn.reward, Invalid)), None)
    if invalid is not None:
        others = f"; it is valid for {valid[0]}" if valid else ""
        problem = f"task {episode.first.task.id}: the reward for {name} is invalid{others}"
        raise CheckFailed(f"{problem} ({invalid.cause}: {invalid.reason})")
    valid.append(name)


def _answers(
    subject: EnvUnderTest, index: int, task: Task, episodes: Sequence[ObservedEpisode]
) -> Iterator[tuple[str, Agent]]:
    yield "an empty answer", say("")
    others = [episode for episode in episodes if episode.task_key != task.key and episode.actions]
    if others:
        text = others[index % len(others)].actions[-1]
        yield f"the answer to another task, {text!r:.60}", say(text)
    for text in random_actions((), subject.seed + index, NUM_RANDOM):
        yield f"the random text {text!r:.40}", say(text)
    yield "a word in a box", say("\\boxed{something else}")
    yield "a word between tags", say("<answer>something else</answer>")
    if index % HOSTILE_EVERY == 0:
        for text in HOSTILE_TEXTS:
            yield f"the hostile text {text!r:.40}", say(text)
