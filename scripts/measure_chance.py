"""Measure what an agent earns that does not read the task, and write it to `envs/puzzles/data/reasoning_gym.toml`.

Run: python scripts/measure_chance.py [DATASET ...]. The agent gives the same answer to every item of a data set: one of
its five most frequent solutions, True, 0, 1, (), nothing, or the question itself. The answer is the best one on the
first 100 items; what it earns is measured on the next 200 (fewer where the generator is slow).
"""

import argparse
import json
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from envgym.envs.puzzles._reasoning_client import GeneratedItem, ItemGenerator, dataset_names
from envgym.envs.puzzles.reasoning_gym import NUM_ITEMS, WITHOUT_SOLUTION
from envgym.files import write_atomic
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_mean, estimate_success

PATH = Path(__file__).resolve().parent.parent / "envs" / "puzzles" / "data" / "reasoning_gym.toml"
NUM_CHOOSING, NUM_MEASURED = 100, 200
SECONDS = 150.0
"""Of making and scoring the items of a data set, for each of the two parts; at least `MIN_ITEMS` are made."""
MIN_ITEMS = 20
NUM_SOLUTIONS = 5
CONSTANTS = ("", "0", "1", "True", "()")
QUESTION = "{question}"
MAX_SHOWN = 40
HEAD = """\
# What an agent earns that does not read, on the generators of reasoning-gym 0.1.25 with their default settings: it
# gives the same answer to every item, the best of eleven on 100 items, measured on `num_items` others. The interval is
# of 95 %. An answer of more than 40 characters is left out. Written by scripts/measure_chance.py.

# Neither answer nor example: only the scorer knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChance:
    """What one answer earns on items that it was not chosen on."""

    answer: str | None = None
    """None: not kept."""
    num_items: int
    mean: float
    low: float
    high: float

    def toml(self) -> str:
        """Write an inline table; a long answer is left out."""
        is_shown = self.answer is not None and len(self.answer) <= MAX_SHOWN
        answer = f"answer = {json.dumps(self.answer, ensure_ascii=False)}, " if is_shown else ""
        numbers = ", ".join(f"{name} = {getattr(self, name):.4g}" for name in ("mean", "low", "high"))
        return f"{{ {answer}num_items = {self.num_items}, {numbers} }}"


def main() -> None:
    """Measure data sets, two at a time, and write the file after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", metavar="DATASET", nargs="*", help="names (default: all)")
    names = parser.parse_args().datasets or dataset_names()
    old = tomllib.loads(PATH.read_text(encoding="utf-8"))
    full, partial = ({name: MeasuredChance(**row) for name, row in old[kind].items()} for kind in ("full", "partial"))
    with ThreadPoolExecutor(2) as pool:
        for name, (solved, scored) in zip(names, pool.map(measure, names), strict=True):
            full[name], partial[name] = solved, scored
            write_atomic(PATH, page(full, partial))


def page(full: Mapping[str, MeasuredChance], partial: Mapping[str, MeasuredChance]) -> str:
    """Write the file; with partial credit only what differs."""
    lines = [
        HEAD,
        f"without_solution = {json.dumps(WITHOUT_SOLUTION)}",
        "",
        "# Share of the items that it solves.",
        "[full]",
    ]
    lines += [f"{name} = {row.toml()}" for name, row in sorted(full.items())]
    lines += ["", "# Mean score with partial credit; absent: as above.", "[partial]"]
    lines += [f"{name} = {row.toml()}" for name, row in sorted(partial.items()) if row.toml() != full[name].toml()]
    return "\n".join(lines) + "\n"


def measure(dataset: str) -> tuple[MeasuredChance, MeasuredChance]:
    """Return what the best answer earns of full scores, and with partial credit."""
    source = ItemGenerator(dataset=dataset, config=json.dumps({"seed": 0, "size": NUM_ITEMS}))
    choosing = _items(source, 0, NUM_CHOOSING)
    solutions = Counter(item.solution for item in choosing.values() if item.solution is not None)
    candidates = [*CONSTANTS, QUESTION, *(solution for solution, _ in solutions.most_common(NUM_SOLUTIONS))]
    scores = {answer: _scores(source, choosing, answer) for answer in candidates}
    best_full = max(candidates, key=lambda answer: sum(score == 1.0 for score in scores[answer]))
    best_partial = max(candidates, key=lambda answer: sum(scores[answer]))
    fresh = _items(source, NUM_CHOOSING, NUM_MEASURED)
    solved = [float(score == 1.0) for score in _scores(source, fresh, best_full)]
    partial = _by_item(_scores(source, fresh, best_partial))
    return (
        _measured(best_full, estimate_success(_by_item(solved))),
        _measured(best_partial, estimate_mean(partial, rng=generator("measure_chance", best_partial))),
    )


def _items(source: ItemGenerator, first: int, count: int) -> Mapping[int, GeneratedItem]:
    """Make items that may be tasks, as many as there is time for."""
    end = time.monotonic() + SECONDS
    items: dict[int, GeneratedItem] = {}
    for index in range(first, first + count):
        if len(items) >= MIN_ITEMS and time.monotonic() > end:
            break
        item = source.item(index)
        if item.solution is not None or source.dataset in WITHOUT_SOLUTION:
            items[index] = item
    return items


def _scores(source: ItemGenerator, items: Mapping[int, GeneratedItem], answer: str) -> list[float]:
    return [source.score(index, answer.replace(QUESTION, item.question)).score for index, item in items.items()]


def _by_item(scores: Sequence[float]) -> dict[str, list[float]]:
    return {str(number): [score] for number, score in enumerate(scores)}


def _measured(answer: str, estimate: Estimate) -> MeasuredChance:
    interval = estimate.interval
    return MeasuredChance(
        answer=answer, num_items=estimate.num_tasks, mean=estimate.value, low=interval.low, high=interval.high
    )
