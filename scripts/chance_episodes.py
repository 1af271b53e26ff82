"""Tables of chance scores that are measured by playing episodes, by agents of the environment or of this module."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np

import envgym
from envgym.conformance.agents import Agent, say
from envgym.conformance.env_under_test import ObservedEpisode, play
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, TaskSource
from envgym.core.turns import Ending
from envgym.envs.families import LEVELS
from envgym.envs.math._metamath.statements import FAMILIES as STATEMENTS
from envgym.envs.math._metamath.statements import MAX_HYPOTHESES
from envgym.envs.math._metamath.tasks import statement_tasks
from envgym.envs.math._metamath.theory import Rule, propositional
from envgym.envs.math._theorem_tasks import FAMILIES as THEOREMS
from envgym.envs.math._theorem_tasks import theorem_tasks
from envgym.envs.puzzles._household import MILESTONES
from envgym.envs.puzzles._science_simulator import shared_games
from envgym.envs.puzzles.household import MAX_ROOMS, MEASURED_TURNS, Household
from envgym.envs.puzzles.science import KINDS, Science
from envgym.envs.puzzles.textworld import GAMES, TextWorld
from envgym.envs.tools._mcp.plans import SERVERS, content, simulated
from envgym.envs.tools._mcp.servers.protocol import Json, McpServer, Refusal, input_schema
from envgym.envs.tools._mcp.tasks import draw_task
from envgym.seeds import generator
from envgym.stats import estimate_mean, estimate_success
from scripts.chance_answers import ChanceTable, Row

Rewards = dict[str, list[float]]
"""Task -> reward of each episode."""

TACTICS = (
    "intros.",
    "assumption.",
    "reflexivity.",
    "simpl.",
    "split.",
    "left.",
    "right.",
    "exfalso.",
    "constructor.",
    "simpl in *.",
    "subst.",
    "f_equal.",
    "match goal with H : _ |- _ => apply H end.",
    "match goal with H : _ |- _ => destruct H end.",
    "match goal with H : _ |- _ => induction H end.",
    "match goal with H : _ = _ |- _ => rewrite H end.",
    "rewrite Nat.add_comm.",
    "rewrite Nat.mul_comm.",
    "rewrite Nat.add_assoc.",
    "apply Nat.lt_le_incl.",
    "eapply Nat.le_trans.",
)
PROOF_TURNS, METAMATH_TURNS, SCIENCE_TURNS, MCP_CALLS = 60, 40, 50, 30
_FIRST_VALUES = ("/", "a", "e", "2026-09-07", "2026-09-09", "09:00", "archive", "search")
"""Values that an agent may try before it has seen any."""


def _high(successes: Rewards) -> float:
    """Return the upper end of the interval of a share."""
    return estimate_success(successes).interval.high


# ---- agents of the environment ---------------------------------------------------------------------------------------


def household(rooms: str, num: int) -> Iterator[Row]:
    """Measure both agents on every kind of task; the better one counts."""
    highest: dict[str, list[str]] = {"solved": [], "subgoals": []}
    for kind, milestones in MILESTONES.items():
        env = Household(rooms=int(rooms), kinds=kind, distractors=0, max_turns=MEASURED_TURNS)
        ends: dict[str, list[float]] = {name: [] for name in highest}
        for number, name in enumerate(env.chance_agents(generator())):
            solved, shares = Rewards(), Rewards()
            for index in range(num):
                agent = env.chance_agents(generator("household chance", kind, int(rooms), index, number))[name]
                episode = _play(env, agent, index)
                solved[str(index)] = [float(episode.ending is Ending.TERMINATED)]
                shares[str(index)] = [env.state.reached.bit_count() / len(milestones)]
            ends["solved"].append(_high(solved))
            draws = generator("household chance", kind, int(rooms))
            ends["subgoals"].append(estimate_mean(shares, rng=draws).interval.high)
        for name, values in ends.items():
            highest[name].append(f"{kind} = {max(values):.3f}")
    for name, parts in highest.items():
        yield name, rooms, f"{{ {', '.join(parts)} }}"


def textworld(game: str, num: int) -> Iterator[Row]:
    """Measure both agents; the better one counts."""
    env = TextWorld(games=game)
    ends: dict[str, list[float]] = {"score": [], "solved": []}
    for name in env.chance_agents(generator()):
        scores, solved = Rewards(), Rewards()
        for index in range(num):
            episode = _play(env, env.chance_agents(generator("textworld chance", game, index))[name], index)
            scores[str(index)] = [episode.reward]
            solved[str(index)] = [float(env.state.steps[-1].is_solved)]
        ends["score"].append(_high(scores))
        ends["solved"].append(_high(solved))
    for name, values in ends.items():
        yield name, game, f"{max(values):.3f}"


def _play(env: Household | TextWorld | Science, agent: Agent, index: int) -> ObservedEpisode:
    assert env.max_turns is not None
    return play(env, agent, seed=index, task=env.tasks.task(Split.TRAIN, index), max_turns=env.max_turns)


# ---- agents that are too slow for the environment's own check -------------------------------------------------------


def science(_: str, num: int) -> Iterator[Row]:
    """Draw among the actions that can be done; those that focus end an episode, mostly without a reward."""
    solved = Rewards()
    for kind in KINDS:
        env = Science(kinds=kind, max_turns=SCIENCE_TURNS)
        scores: list[float] = []
        for index in range(num):
            rng = generator("science chance", kind, index)

            def draw(turn: int, observation: str, env: Science = env, rng: np.random.Generator = rng) -> str:
                actions = shared_games().admissible(env.state.variation, env.state.steps)
                actions = [action for action in actions if not action.startswith("focus")]
                return actions[rng.integers(len(actions))]

            _play(env, draw, index)
            scores.append(max(0, *(step.score for step in env.state.steps)) / 100)
            solved[f"{kind} {index}"] = [float(scores[-1] >= 1.0)]
        yield "score", kind, f"{max(scores):.2f}"
    yield "", "solved", f"{_high(solved):.3f}"


def mcp(server: str, num: int) -> Iterator[Row]:
    """Play every level; the servers run in this process, where their code is the same."""
    ends = [
        _high({str(index): [float(is_solved_by_calls(server, level, index))] for index in range(num)})
        for level in LEVELS
    ]
    yield "", server, f"[{', '.join(f'{end:.4f}' for end in ends)}]"


def is_solved_by_calls(server: str, level: int, index: int) -> bool:
    """Play a task with random calls, and stop after half of those that change a record; return whether it is solved."""
    task = draw_task(generator("mcp chance task", server, level, index), server, level).payload
    rng = generator("mcp chance", server, level, index)
    running = simulated(server, task["tables"])
    seen: list[str] = [*_FIRST_VALUES]
    for _ in range(MCP_CALLS):
        before = content(server, running.tables)
        _call_something(running, seen, rng)
        if content(server, running.tables) != before and rng.random() < 0.5:
            break
    goal = task["goal"]
    assert isinstance(goal, Mapping), "written by draw_task"
    return content(server, running.tables) == content(server, goal)


def _call_something(running: McpServer, seen: list[str], rng: np.random.Generator) -> None:
    """Call a tool that is offered, with values that the server has returned, and add those of its result."""
    tools = list(running.listed())
    tool = tools[rng.integers(len(tools))]
    properties: Json = input_schema(tool)["properties"]
    arguments = {key: _value(schema, seen, rng) for key, schema in properties.items()}
    try:
        _add_values(running.call(tool["name"], arguments), seen)
    except Refusal:
        return


def _value(schema: Json, seen: list[str], rng: np.random.Generator) -> JsonValue:
    if schema["type"] == "integer":
        return int(rng.integers(schema.get("minimum", 1), 5 + schema.get("minimum", 1)))
    return seen[rng.integers(len(seen))]


def _add_values(result: object, seen: list[str]) -> None:
    if isinstance(result, str):
        seen.extend(line for line in [result, *result.split("\n")] if line not in seen)
    elif isinstance(result, Mapping | list):
        for part in result.values() if isinstance(result, Mapping) else json.loads(json.dumps(result)):
            _add_values(part, seen)


# ---- proofs ----------------------------------------------------------------------------------------------------------

Provers = Mapping[str, tuple[Callable[[int], Agent], int]]
"""Name -> (number of the task -> agent, most turns)."""


def proofs(family: str, num: int) -> Iterator[Row]:
    """Draw tactics turn by turn; give another theorem's proof; or give one tactic that tries all, by itself."""
    everything = f"repeat first [{' | '.join(f'progress ({tactic[:-1]})' for tactic in TACTICS[::-1])}]."

    def provers(level: int, others: Sequence[Sequence[str]]) -> Provers:
        def borrowing(index: int) -> Agent:
            return lambda turn, observation: others[index][turn] if turn < len(others[index]) else "reflexivity."

        return {
            "drawn": (_drawing(TACTICS, "measure_proof_chance", family, level), PROOF_TURNS),
            "borrowed": (borrowing, PROOF_TURNS),
            "all at once": (lambda index: say(everything), 1),
        }

    yield _shares("math/proofs-v0", family, num, theorem_tasks, provers, tactic_s=2.0)


def metamath(family: str, num: int) -> Iterator[Row]:
    """Draw labels turn by turn; give all labels in turn, hypotheses first; or give another statement's proof."""
    rules = [propositional().rule(item) for item in propositional().provable]
    hypotheses = [f"h{number}" for number in range(1, MAX_HYPOTHESES + 1)]
    labels = [*hypotheses, *map(_step, sorted(rules, key=lambda rule: len(rule.premises)))]

    def provers(level: int, others: Sequence[Sequence[str]]) -> Provers:
        def borrowing(index: int) -> Agent:
            return lambda turn, observation: others[index][turn % len(others[index])]

        return {
            "drawn": (_drawing(labels, "measure_metamath_chance", family, level), METAMATH_TURNS),
            "in turn": (lambda index: lambda turn, observation: labels[turn % len(labels)], METAMATH_TURNS),
            "borrowed": (borrowing, METAMATH_TURNS),
        }

    yield _shares("math/metamath-v0", family, num, statement_tasks, provers)


def _step(rule: Rule) -> str:
    """Write a step with `ph` for all that the goal does not determine."""
    substitutions = ", ".join(f"{name} := ph" for name in rule.free)
    return f"{rule.label} with {substitutions}" if substitutions else rule.label


def _drawing(actions: Sequence[str], *seed: str | int) -> Callable[[int], Agent]:
    def agent(index: int) -> Agent:
        draw = generator(*seed, index)
        return lambda turn, observation: actions[int(draw.integers(len(actions)))]

    return agent


def _shares(
    env_id: str,
    family: str,
    num: int,
    tasks_of: Callable[[str, int, tuple[str, ...]], TaskSource],
    provers: Callable[[int, Sequence[Sequence[str]]], Provers],
    **settings: object,
) -> Row:
    """Return the best agent's share at each level, counted with one more task proved and one more not."""
    shares = []
    with closing(envgym.make(env_id, families=family, **settings)) as env:
        for level in LEVELS:
            tasks = [tasks_of(family, level, ()).task(Split.TRAIN, index) for index in range(num)]
            others = [list(map(str, task.metadata["proof"])) for task in [*tasks[1:], tasks[0]]]  # type: ignore[arg-type]  # lists of texts
            proved = [
                sum(
                    play(env, agent(index), seed=index, task=task, max_turns=turns).reward
                    for index, task in enumerate(tasks)
                )
                for agent, turns in provers(level, others).values()
            ]
            shares.append(round((max(proved) + 1) / (num + 2), 3))
    return "", family, str(shares)


TABLES: Mapping[str, ChanceTable] = {
    "household": ChanceTable(
        "puzzles/data/household/chance.toml", [str(rooms + 1) for rooms in range(MAX_ROOMS)], household, 300
    ),
    "textworld": ChanceTable("puzzles/data/textworld_chance.toml", GAMES, textworld, 200),
    "science": ChanceTable("puzzles/data/science_chance.toml", ["all"], science, 4),
    "mcp": ChanceTable("tools/data/mcp_chance.toml", list(SERVERS), mcp, 1000),
    "metamath": ChanceTable("math/data/metamath_chance.toml", sorted(STATEMENTS), metamath, 200),
    "proofs": ChanceTable("math/data/proofs_chance.toml", sorted(THEOREMS), proofs, 24),
}
