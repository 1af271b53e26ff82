"""Checks of the tasks: they repeat, splits do not overlap, the oracle solves them, the answer is not told."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from envgym.conformance.env_under_test import CheckFailed, CheckSkipped, EnvUnderTest, ObservedEpisode
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split
from envgym.errors import InvalidInput
from envgym.parsing import parse_action

TASKS_COMPARED = 10
"""Times the number of played tasks: so many are drawn to compare the splits."""
_TOLERANCE = 1e-6


def oracle_reaches_optimum(subject: EnvUnderTest) -> str:
    """Play the oracle on tasks of both splits: each episode must pay the declared optimum."""
    episodes = subject.oracle_episodes
    with closing(subject.make()) as env:
        optimum = env.unwrapped.optimum
    if not episodes:
        raise CheckFailed("there is no task in any split")
    for episode in episodes:
        if episode.ending is None:
            raise CheckFailed(f"task {episode.first.task.id}: the oracle did not end it in {len(episode.turns)} turns")
        if abs(episode.reward - optimum) > _TOLERANCE:
            raise CheckFailed(f"task {episode.first.task.id}: the oracle gets {episode.reward:g}, declared {optimum:g}")
    turns = [len(episode.turns) for episode in episodes]
    splits = Counter(episode.first.task.split.value for episode in episodes)
    counts = ", ".join(f"{count} {split}" for split, count in splits.items())
    return f"{optimum:g} on {counts} tasks in {min(turns)} to {max(turns)} turns"


def splits_do_not_overlap(subject: EnvUnderTest) -> str:
    """Compare the content of tasks of both splits, and that each task comes again as it was."""
    keys: dict[Split, set[str]] = {}
    with closing(subject.make()) as env, closing(subject.make()) as other:
        source, again = env.unwrapped.tasks, other.unwrapped.tasks
        for split in Split:
            tasks = subject.tasks(split, TASKS_COMPARED * subject.num_tasks)
            for index in range(min(len(tasks), subject.num_tasks)):
                first, second = source.task(split, index), again.task(split, index)
                if (first, first.key) != (second, second.key) or first != source.task(split, index):
                    raise CheckFailed(f"task {index} of {split} is not the same when it is requested again")
            for task in tasks:
                if task.split is not split:
                    raise CheckFailed(f"task {task.id} of {split} says that it belongs to {task.split}")
            keys[split] = {task.key for task in tasks}
            _check_end(subject, split)
    shared = keys[Split.TRAIN] & keys[Split.TEST]
    if shared:
        raise CheckFailed(f"{len(shared)} of {len(keys[Split.TEST])} test tasks are also in train (equal payload)")
    if not keys[Split.TRAIN] or not keys[Split.TEST]:
        empty = [split.value for split in Split if not keys[split]]
        raise CheckSkipped(f"no tasks in {', '.join(empty)}")
    return f"0 shared between {len(keys[Split.TRAIN])} train and {len(keys[Split.TEST])} test tasks"


def _check_end(subject: EnvUnderTest, split: Split) -> None:
    with closing(subject.make()) as env:
        source = env.unwrapped.tasks
        size = source.size(split)
        if size is None:
            return
        try:
            source.task(split, size)
        except InvalidInput:
            return
        raise CheckFailed(f"{split} holds {size} tasks, but task number {size} does not raise InvalidInput")


# ---- does the prompt tell the answer? -----------------------------------------------------------------------------

_ANSWER_KEYS = re.compile(r"answer|solution|gold|secret|hidden|label|expected", re.IGNORECASE)
_MIN_EPISODES = 6
_MIN_SHARE = 0.9
_CONTEXT = 12


def answer_is_hidden(subject: EnvUnderTest) -> str:
    """Look for the answer in what the agent sees at the start (a heuristic).

    An answer is taken from the oracle's last action and from payload entries that are named like one. It counts as
    told where, in nearly every task, it stands right after the same words at their first occurrence.
    """
    episodes = subject.oracle_episodes
    sources: dict[str, list[tuple[ObservedEpisode, str]]] = {}
    for episode in episodes:
        for name, answer in _answers(episode):
            sources.setdefault(name, []).append((episode, answer))
    usable = {
        name: pairs
        for name, pairs in sources.items()
        if len(pairs) >= _MIN_EPISODES and len({answer for _, answer in pairs}) >= 3
    }
    if not usable:
        raise CheckSkipped("no answer that varies between tasks was found in the payload or the oracle's last action")
    for name, pairs in usable.items():
        words = _words_before_answer(pairs)
        if words is not None:
            raise CheckFailed(f"the answer ({name}) stands in the first observation, after {words!r}")
    return f"heuristic: {', '.join(usable)} not found in {len(episodes)} first observations"


def _answers(episode: ObservedEpisode) -> Iterator[tuple[str, str]]:
    for path, leaf in _leaves(episode.first.task.payload, ""):
        if _ANSWER_KEYS.search(path):
            yield f"payload {path}", leaf
    if episode.actions:
        last = parse_action(episode.actions[-1])
        for call in last.tool_calls:
            for path, leaf in _leaves(call.arguments, ""):
                yield f"oracle's {call.name} {path}", leaf
        text = last.content.strip()
        if text:
            marked = re.search(r"\\boxed\{(.*)\}|<answer>(.*)</answer>|(\S+)$", text, re.DOTALL)
            yield "oracle's last action", next(filter(None, marked.groups()), text).strip() if marked else text


def _leaves(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part, path)
    elif value not in (None, "") and not isinstance(value, bool):
        yield path, str(value)


def _words_before_answer(pairs: Sequence[tuple[ObservedEpisode, str]]) -> str | None:
    """Return the words after which nearly every observation has its answer, or None."""
    contexts: Counter[str] = Counter()
    for episode, answer in pairs:
        contexts.update(set(_contexts(_visible(episode), answer)))
    for context, count in contexts.most_common():
        if count >= _MIN_SHARE * len(pairs):
            return context
    return None


def _contexts(text: str, answer: str) -> Iterator[str]:
    """Yield the words, of every length up to a bound, whose first occurrence in `text` the answer follows."""
    for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", text):
        before = text[max(0, match.start() - _CONTEXT) : match.start()]
        for start in range(len(before)):
            context = before[start:]
            if len(context.strip()) >= 2 and text.find(context) == match.start() - len(context):
                yield context


def _visible(episode: ObservedEpisode) -> str:
    tools = [f"{tool.name} {tool.description} {tool.parameters}" for tool in episode.first.tools]
    return "\n".join([episode.first.system_prompt, *tools, episode.observation])
