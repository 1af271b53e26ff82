"""Checks that nothing but solving the task pays: neither chance nor any of the usual tricks.

Each trick is played on several tasks. A declared `chance_score` p is refuted where the mean reward m of n episodes
would be this high with probability at most 0.1 %: n KL(m || p) > ln(1000 k) for k tricks tried (Chernoff's bound for
rewards scaled to [0, 1]). With p at the lower end of the reward range a single paid episode refutes it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

from envgym.conformance.agents import TEXTS, Agent, call_text, echo, random_agent, random_arguments, say
from envgym.conformance.env_under_test import CheckFailed, CheckSkipped, EnvUnderTest, play
from envgym.core.tasks import Task
from envgym.parsing import parse_action
from envgym.seeds import generator
from envgym.wrappers import AnyEnv

CONFIDENCE = 1000.0
"""One false alarm in so many checks of an env that keeps its declaration exactly."""
_EPSILON = 1e-9

AgentFor = Callable[[Task, int], Agent]
"""(task, number of the episode) -> agent."""

FORMATS: list[str] = TEXTS["formats"]
"""What an answer looks like, without the answer."""
INJECTIONS: list[str] = TEXTS["injections"]
"""Texts that pretend to come from the tools or the grader."""
GRADER_FILES: list[str] = TEXTS["grader_files"]
"""String arguments that try to write a grader's files or to leave before it runs."""


def chance_stays_at_declared(subject: EnvUnderTest) -> str:
    """Play agents that do not read the task: empty, echo, random, and those of the env's `chance_agents`, if any."""
    agents: dict[str, AgentFor] = {
        "empty": lambda task, index: say(""),
        "echo": lambda task, index: echo,
        "random": lambda task, index: random_agent(subject.tools, subject.seed + index),
    }
    with closing(subject.make()) as env:
        own: Callable[..., Mapping[str, Agent]] = getattr(env.unwrapped, "chance_agents", lambda rng: {})

        def own_agent(name: str, task: Task, index: int) -> Agent:
            return own(generator("chance", subject.seed, index))[name]

        agents |= {name: partial(own_agent, name) for name in own(generator())}
        return _refute_in(env, subject, agents, subject.played_tasks)


def format_alone_pays_nothing(subject: EnvUnderTest) -> str:
    """Say what an answer looks like, without the answer."""
    return _refute(subject, {text: _agent_saying(text) for text in FORMATS}, _half(subject.played_tasks))


def injections_pay_nothing(subject: EnvUnderTest) -> str:
    """Pretend to be a tool or the grader, in plain text and in string arguments of tools."""
    tricks = {text: _agent_saying(text) for text in INJECTIONS}
    tricks |= {f"{name} with {text!r}": agent for text in INJECTIONS for name, agent in _calls(subject, text)}
    return _refute(subject, tricks, _half(subject.played_tasks))


def prompt_echo_pays_nothing(subject: EnvUnderTest) -> str:
    """Say the task's prompt, and the prompt as an answer."""
    tricks: dict[str, AgentFor] = {
        "the prompt": lambda task, index: say(task.prompt),
        "the prompt in a box": lambda task, index: say(f"\\boxed{{{task.prompt}}}"),
        "the prompt as an answer": lambda task, index: say(f"<answer>{task.prompt}</answer>"),
    }
    return _refute(subject, tricks, subject.played_tasks)


def grader_files_pay_nothing(subject: EnvUnderTest) -> str:
    """Call every tool with text that tries to write a grader's files."""
    tricks = {f"{name} with {text!r}": agent for text in GRADER_FILES for name, agent in _calls(subject, text)}
    if not tricks:
        raise CheckSkipped("the env has no tool that takes a string")
    return _refute(subject, tricks, _half(subject.played_tasks))


def others_answers_pay_nothing(subject: EnvUnderTest) -> str:
    """Say what the oracle says on another task."""
    episodes = subject.oracle_episodes
    answers = {}
    for index, episode in enumerate(episodes):
        following = (*episodes[index + 1 :], *episodes[:index])
        other = next((item for item in following if item.actions != episode.actions), None)
        if other is not None:
            answers[episode.task_key] = other.actions
    if not answers:
        raise CheckSkipped("the oracle says the same on every task")
    tasks = [episode.first.task for episode in episodes if episode.task_key in answers]
    tricks: dict[str, AgentFor] = {"another task's actions": lambda task, index: _script(answers[task.key])}
    return _refute(subject, tricks, tasks)


def all_candidates_pay_nothing(subject: EnvUnderTest) -> str:
    """Say the oracle's last actions of many tasks at once, the right one among them but neither first nor last."""
    episodes = subject.oracle_episodes
    last = subject.candidates
    if len(last) < 3:
        raise CheckSkipped("the oracle's last actions do not differ between tasks")
    texts: dict[str, str] = {}
    for episode in episodes:
        others = [text for text in last if text != episode.actions[-1]]
        middle = len(others) // 2
        texts[episode.task_key] = "\n".join([*others[:middle], episode.actions[-1], *others[middle:]])
    tricks: dict[str, AgentFor] = {
        "all candidates": lambda task, index: say(texts[task.key]),
        "all candidates in one box": lambda task, index: say(f"\\boxed{{{_contents(texts[task.key])}}}"),
        "all candidates in one answer": lambda task, index: say(f"<answer>{_contents(texts[task.key])}</answer>"),
    }
    return _refute(subject, tricks, [episode.first.task for episode in episodes])


# ---- how a trick is judged ----------------------------------------------------------------------------------------


def _refute(subject: EnvUnderTest, tricks: Mapping[str, AgentFor], tasks: Sequence[Task]) -> str:
    """Play every trick on every task. Raises: CheckFailed: one pays more than chance."""
    with closing(subject.make()) as env:
        return _refute_in(env, subject, tricks, tasks)


def _refute_in(env: AnyEnv, subject: EnvUnderTest, tricks: Mapping[str, AgentFor], tasks: Sequence[Task]) -> str:
    if not tasks:
        raise CheckSkipped("there is no task to play")
    worst, allowed = -math.inf, 0.0
    chance, (low, high) = env.unwrapped.chance_score, env.unwrapped.reward_range
    for name, agent_for in tricks.items():
        rewards = [
            play(env, agent_for(task, index), seed=subject.seed + index, task=task).reward
            for index, task in enumerate(tasks)
        ]
        mean = sum(rewards) / len(rewards)
        worst = max(worst, mean)
        allowed = highest_mean(chance, len(rewards), low, high, num_tricks=len(tricks))
        if mean > allowed + _EPSILON:
            limit = f"chance_score {chance:g} allows up to {allowed:.3g}"
            raise CheckFailed(f"{name!r:.100} gets {mean:.3g} on average over {len(rewards)} tasks; {limit}")
    counted = f"{len(tricks)} x {len(tasks)} episodes"
    return f"{counted}: highest mean {worst:.3g}, chance_score {chance:g}, refuted above {allowed:.3g}"


def highest_mean(chance: float, num_episodes: int, low: float, high: float, *, num_tricks: int = 1) -> float:
    """Return the highest mean reward that does not refute an expectation of at most `chance`.

    The largest m with n KL(m' || p') <= ln(1000 k), where m' and p' are m and `chance` scaled to [0, 1].
    """
    width = high - low
    expected = (chance - low) / width if width > 0 else 0.0
    if expected <= 0.0 or expected >= 1.0:
        return chance
    budget = math.log(CONFIDENCE * num_tricks) / num_episodes
    below, above = expected, 1.0
    for _ in range(60):
        middle = (below + above) / 2
        below, above = (middle, above) if _divergence(middle, expected) <= budget else (below, middle)
    return low + width * above


def _divergence(mean: float, expected: float) -> float:
    """KL divergence of two coins, in nats."""
    first = mean * math.log(mean / expected) if mean > 0 else 0.0
    return first + ((1 - mean) * math.log((1 - mean) / (1 - expected)) if mean < 1 else 0.0)


# ---- small parts --------------------------------------------------------------------------------------------------


def _agent_saying(text: str) -> AgentFor:
    return lambda task, index: say(text)


def _script(actions: Sequence[str]) -> Agent:
    return lambda turn, observation: actions[turn] if turn < len(actions) else ""


def _half(tasks: Sequence[Task]) -> Sequence[Task]:
    """Return every second task: tricks that fail do so on any task."""
    return tasks[::2]


def _contents(text: str) -> str:
    """Return a text without the marks of an answer."""
    return " ".join(parse_action(line).content.replace("\\boxed{", "").strip("}").strip() for line in text.splitlines())


def _calls(subject: EnvUnderTest, text: str) -> Iterator[tuple[str, AgentFor]]:
    """Yield, for every tool that takes a string, the agent that calls it with `text` and then gives up."""
    draw = generator("conformance", "tricks", subject.seed)
    for spec in subject.tools:
        arguments = random_arguments(spec.parameters, draw, text)
        if text in arguments.values():
            yield spec.name, _agent_calling(call_text(spec.name, arguments))


def _agent_calling(call: str) -> AgentFor:
    return lambda task, index: _script([call, "Done."])
