"""Tables of chance scores of single answers: the best answer is chosen on some tasks and measured on others."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from envgym.core.tasks import Split
from envgym.envs.math._instructions.kinds import KINDS
from envgym.envs.math._instructions.writer import DATA
from envgym.envs.math.instructions import MAX_ATTEMPTS as MAX_TEXTS
from envgym.envs.math.instructions import MAX_CONSTRAINTS, REWARDS, Instructions, InstructionTask, grade_text
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance, quality_of
from envgym.envs.puzzles._np.problems import MAX_ATTEMPTS, PROBLEMS, SIZES
from envgym.envs.puzzles._reasoning_client import GeneratedItem, ItemGenerator
from envgym.envs.puzzles.reasoning_gym import CHANCE, NUM_ITEMS, WITHOUT_SOLUTION
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_mean, estimate_success

Row = tuple[str, str, str]
"""Section of the file (empty: none), key, and value as TOML; an empty value removes the key."""


class ChanceTable(NamedTuple):
    """What chance earns in one environment."""

    path: str
    """The file, below `envs/`; its comments are written by hand."""
    items: Sequence[str]
    """What can be measured by itself, such as a kind of task."""
    measure: Callable[[str, int], Iterator[Row]]
    """(item, number of tasks) -> rows."""
    num: int
    """Tasks or episodes that the file's numbers are of."""


NUM_CHOOSING = 200
"""Tasks on which an answer is chosen."""
LOWEST = 0.01
"""Declared if no answer earned anything."""


def _next_declared(rewards: Sequence[float], before: Sequence[float], rng: np.random.Generator) -> float:
    """Return the upper end of the interval of the mean, rounded up, and at least what fewer attempts earn."""
    by_task = {str(index): [reward] for index, reward in enumerate(rewards)}
    high = math.ceil(100 * estimate_mean(by_task, rng=rng).interval.high) / 100
    return max(high, LOWEST, *before)


def _listed(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:g}' for value in values)}]"


# ---- NP-hard problems ------------------------------------------------------------------------------------------------

BlindAgent = Callable[[np.random.Generator], Answer]
"""Draws an answer."""


def np_hard(kind: str, num: int) -> Iterator[Row]:
    """Measure the best agent's highest rewards in 1 to 5 attempts at every size."""
    problem = PROBLEMS[kind]
    for size, things in zip(SIZES, problem.sizes, strict=True):
        draws = generator("measure_np_chance", kind, things)
        instances = [problem.draw_improvable(draws, things) for _ in range(NUM_CHOOSING + num)]
        choosing, measured = instances[:NUM_CHOOSING], instances[NUM_CHOOSING:]
        agents = blind_agents(problem, instances[0], [problem.solve(instance) for instance in choosing])
        scores = {name: best_so_far(problem, agent, choosing, draws) for name, agent in agents.items()}
        chance: list[float] = []
        name = ""
        for attempt in range(MAX_ATTEMPTS):
            name = max(scores, key=lambda name: sum(row[attempt] for row in scores[name]))
            rows = best_so_far(problem, agents[name], measured, draws)
            chance.append(_next_declared([row[attempt] for row in rows], chance, draws))
        yield kind, size, f"{_listed(chance)}  # {name}"


def blind_agents(problem: HardProblem, instance: Instance, solutions: Sequence[Answer]) -> Mapping[str, BlindAgent]:
    """Return the agents by what they do; of the instance they know the numbers of things and groups."""
    num, groups = problem.num_things(instance), problem.num_groups(instance)

    def subset(size: int) -> BlindAgent:
        return lambda rng: tuple((rng.permutation(num)[:size] + 1).tolist())

    def grouped(used: int) -> BlindAgent:
        return lambda rng: tuple((rng.integers(used, size=num) + 1).tolist())

    def evenly(used: int) -> BlindAgent:
        return lambda rng: tuple((rng.permutation(num) % used + 1).tolist())

    def signed(rng: np.random.Generator) -> Answer:
        return tuple(((np.arange(num) + 1) * (2 * rng.integers(2, size=num) - 1)).tolist())

    agents: dict[str, BlindAgent] = {"solutions of others": lambda rng: solutions[int(rng.integers(len(solutions)))]}
    match problem.form:
        case AnswerForm.SUBSET:
            agents |= {f"{size} of {num} things": subset(size) for size in range(1, num + 1)}
        case AnswerForm.GROUPS:
            agents |= {f"{used} groups": grouped(used) for used in range(1, groups + 1)}
            agents |= {f"{used} groups, evenly": evenly(used) for used in range(1, groups + 1)}
        case AnswerForm.LITERALS:
            agents["random signs"] = signed
    return agents


def best_so_far(
    problem: HardProblem, agent: BlindAgent, instances: Sequence[Instance], rng: np.random.Generator
) -> list[list[float]]:
    """Return, for each instance, the quality of the best of the first 1 to 5 answers."""
    rows = []
    for instance in instances:
        optimum, baseline, row = problem.optimum(instance), problem.baseline(instance), [0.0]
        for _ in range(MAX_ATTEMPTS):
            value = problem.evaluate(instance, agent(rng))
            row.append(max(row[-1], quality_of(value, optimum, baseline) if isinstance(value, int) else 0.0))
        rows.append(row[1:])
    return rows


# ---- texts that follow instructions ----------------------------------------------------------------------------------

LENGTHS = (52, 66, 80, 94, 110, 130)
FORMS = ("words", "related", "capitals", "sections", "paragraphs", "list", "everything", "json")


def instructions(_: str, num: int) -> Iterator[Row]:
    """Measure all numbers of constraints.

    `base` is what texts earn where topic and length alone count: the most of all settings, and of a kind that asks for
    no length. With chosen kinds of constraints it is no more.
    """
    draws = generator("measure_instructions_chance")
    texts = [blind_text(draws, form, length) for form, length in product(FORMS, LENGTHS)]
    base = [LOWEST] * MAX_TEXTS
    for count, kinds in (*((count, tuple(KINDS)) for count in range(1, MAX_CONSTRAINTS + 1)), (1, ("no_commas",))):
        grades = [[grade_text(text, task).components for text in texts] for task in draw_tasks(count, kinds, num)]
        about = [[part["topic"] * part["own_words"] for part in row] for row in grades]
        base = list(map(max, base, best_texts(np.array(about), draws)))
        for reward in REWARDS if len(kinds) > 1 else ():
            earned = np.array([[part[reward] for part in row] for row in grades])
            yield reward, str(count), _listed(best_texts(earned, draws))
    yield from ((reward, "base", _listed(base)) for reward in REWARDS)


def draw_tasks(count: int, kinds: Sequence[str], num: int) -> Iterator[InstructionTask]:
    """Yield tasks of both splits, as many of each."""
    env = Instructions(constraints=count, kinds=kinds)
    for index in range((NUM_CHOOSING + num) // 2):
        for split in Split:
            env.reset(options={"split": split.value, "index": index})
            yield env.state.instructions


def best_texts(earned: np.ndarray, rng: np.random.Generator) -> list[float]:
    """Return the highest rewards of the best texts in 1 to 3 attempts; `earned` is [tasks, texts]."""
    chance: list[float] = []
    best = np.zeros(len(earned))
    for _ in range(MAX_TEXTS):
        sums = np.maximum(best[:, None], earned)[:NUM_CHOOSING].sum(axis=0)
        best = np.maximum(best, earned[:, int(sums.argmax())])
        chance.append(_next_declared(best[NUM_CHOOSING:].tolist(), chance, rng))
    return chance


def blind_text(rng: np.random.Generator, form: str, length: int) -> str:
    """Write a text of about `length` words: topics as often as the length asks for, then other words once."""
    times = max(2, length // 30)
    topics = [topic for field in DATA["fields"] for topic in field["topics"]]
    related = list(dict.fromkeys(word for field in DATA["fields"] for word in field["related"]))
    others = [
        *related,
        *DATA["common"],
        *(word for clause in DATA["clauses"] for word in clause.split() if word != "{}"),
    ]
    others = [word for word in dict.fromkeys(map(str.lower, others)) if word not in topics]
    num = max(1, (length - length // 2) // times)
    text_topics = [topics[at] for at in rng.permutation(len(topics))[:num]]
    words = text_topics * times
    spare = max(0, length - len(words))
    words += others[:spare] if form == "related" else others[-spare:] if spare else []
    return shape(form, [words[at] for at in rng.permutation(len(words))])


def shape(form: str, words: Sequence[str]) -> str:
    """Put words into a form."""
    text = " ".join(words)
    match form:
        case "capitals":
            return text.upper()
        case "sections":
            return f"part 1\n{text}\npart 2\nletters kkk www ppp ggg"
        case "paragraphs":
            third = len(words) // 3
            return "\n\n".join(" ".join(part) for part in (words[:third], words[third : 2 * third], words[2 * third :]))
        case "list":
            return "\n".join(f"- {' '.join(words[at::4])}" for at in range(4))
        case "everything":
            start, end = DATA["starts"][0].lower(), DATA["ends"][0].lower()
            lines = [f"{start}. [a] [b]", "<<title>>", f"{text}. kkkkk wwwww", "", "- one.", "- two.", end]
            return "\n".join(lines)
        case "json":
            half = len(words) // 2
            return json.dumps({"advice": " ".join(words[:half]), "summary": " ".join(words[half:])})
    return text


# ---- reasoning-gym ---------------------------------------------------------------------------------------------------

NUM_ITEMS_CHOOSING, MIN_ITEMS = 100, 20
SECONDS = 150.0
"""Of making and scoring the items of a data set, for each of the two parts; at least `MIN_ITEMS` are made."""
NUM_SOLUTIONS = 5
CONSTANTS = ("", "0", "1", "True", "()")
QUESTION, LAST_PART = "{question}", "{last part}"
MAX_SHOWN = 40
"""Characters of an answer that is written down."""


def reasoning_gym(dataset: str, num: int) -> Iterator[Row]:
    """Measure the best answer's share of full scores, and its mean with partial credit."""
    source = ItemGenerator(dataset=dataset, config=json.dumps({"seed": 0, "size": NUM_ITEMS}))
    choosing = _items(source, 0, NUM_ITEMS_CHOOSING)
    solutions = Counter(item.solution for item in choosing.values() if item.solution is not None)
    candidates = [*CONSTANTS, QUESTION, LAST_PART, *(solution for solution, _ in solutions.most_common(NUM_SOLUTIONS))]
    scores = {answer: _scores(source, choosing, answer) for answer in candidates}
    best_full = max(candidates, key=lambda answer: sum(score == 1.0 for score in scores[answer]))
    best_partial = max(candidates, key=lambda answer: sum(scores[answer]))
    fresh = _items(source, max(choosing, default=0) + 1, num)
    solved = [float(score == 1.0) for score in _scores(source, fresh, best_full)]
    partial = _by_item(_scores(source, fresh, best_partial))
    full_row = _measured(best_full, estimate_success(_by_item(solved)))
    draws = generator("measure_chance", best_partial)
    partial_row = _measured(best_partial, estimate_mean(partial, rng=draws))
    yield "full", dataset, full_row
    yield "partial", dataset, partial_row if partial_row != full_row else ""


def _items(source: ItemGenerator, first: int, count: int) -> Mapping[int, GeneratedItem]:
    end = time.monotonic() + SECONDS
    items: dict[int, GeneratedItem] = {}
    for index in range(first, NUM_ITEMS):
        if len(items) == count or (len(items) >= MIN_ITEMS and time.monotonic() > end):
            break
        item = source.item(index)
        if not item.ends_with_answer and (item.solution is not None or source.dataset in WITHOUT_SOLUTION):
            items[index] = item
    return items


def _scores(source: ItemGenerator, items: Mapping[int, GeneratedItem], answer: str) -> list[float]:
    texts = {
        index: answer.replace(QUESTION, item.question).replace(LAST_PART, item.question.strip().rpartition("\n\n")[2])
        for index, item in items.items()
    }
    return [source.score(index, text).score for index, text in texts.items()]


def _by_item(scores: Sequence[float]) -> dict[str, list[float]]:
    return {str(number): [score] for number, score in enumerate(scores)}


def _measured(answer: str, estimate: Estimate) -> str:
    """Write an inline table; a long answer is left out."""
    shown = f"answer = {json.dumps(answer, ensure_ascii=False)}, " if len(answer) <= MAX_SHOWN else ""
    ends = {"mean": estimate.value, "low": estimate.interval.low, "high": estimate.interval.high}
    numbers = ", ".join(f"{name} = {value:.4g}" for name, value in ends.items())
    return f"{{ {shown}num_items = {estimate.num_tasks}, {numbers} }}"


TABLES: Mapping[str, ChanceTable] = {
    "np": ChanceTable("puzzles/data/np.toml", list(PROBLEMS), np_hard, 1000),
    "instructions": ChanceTable("math/data/instructions_chance.toml", ["all"], instructions, 600),
    "reasoning_gym": ChanceTable("puzzles/data/reasoning_gym.toml", sorted(CHANCE), reasoning_gym, 200),
}
