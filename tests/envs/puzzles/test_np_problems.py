"""The problems of `puzzles/np-v0`: examples by hand, a second implementation of each, symmetries."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.envs.puzzles._np.graphs import canonical_graph
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance
from envgym.envs.puzzles._np.problems import PROBLEMS
from envgym.envs.puzzles._np.truth_tables import best_assignment, variable_tables

NUM_INSTANCES = 200
PENTAGON: Instance = ((5,), (1, 2), (2, 3), (3, 4), (4, 5), (1, 5))
HAND: dict[str, tuple[Instance, int, float, tuple[Answer, str | int]]] = {
    # 0.5 + 0.5, 0.6 + 0.4, 0.3: three bins; 1.5 * 230 / 100 = 3.45. Items 1 and 3 together are 110.
    "bin_packing": (((100,), (50, 50, 60, 40, 30)), 3, 3.45, ((1, 2, 1, 3, 4), "Bin 1 holds 110, more than 100.")),
    # A triangle 1 2 3 and a tail.
    "clique": (((4,), (1, 2), (2, 3), (1, 3), (3, 4)), 3, 2, ((1, 2, 4), "The vertices 1 and 4 are not joined.")),
    # An odd ring needs three colors. Every degree is 2.
    "coloring": (PENTAGON, 3, 3, ((1, 2, 1, 2, 1), "The edge 1-5 has the same color at both ends.")),
    # Items 2 and 3; the average item is worth 30 / 16 per weight.
    "knapsack": (((10,), (6, 10), (5, 10), (5, 10)), 20, 18.75, ((1, 2), "The total weight is 11, more than 10.")),
    # 3 + 3 and 2 + 2 + 2 end at 6. Longest first: 3 | 3, 3 2 | 3 2, 3 2 2 | 3 2: 7.
    "makespan": (((2,), (3, 3, 2, 2, 2)), 6, 7, ((1, 2, 1, 2, 1), 7)),
    # A triangle with weights 1, 2, 4: the two heaviest. Half of 7, and half of the root of 1 + 4 + 16.
    "max_cut": (((3,), (1, 2, 1), (2, 3, 2), (1, 3, 4)), 6, 3.5 + 21**0.5 / 2, ((1,), 5)),
    # All eight clauses of three variables: one is false whatever is said. 7 + sqrt(7 / 8).
    "max_sat": (
        ((3,), *((a, 2 * b, 3 * c) for a, b, c in product((1, -1), repeat=3))),
        7,
        7 + 0.875**0.5,
        ((1, -2, 3), 7),
    ),
    # 1 2 and 3 4 and 5; three quarters of four.
    "set_cover": (((5,), (1, 2), (3, 4), (2, 3), (4, 5)), 3, 3, ((1, 2), "The element 5 is in none of these sets.")),
    # 300 + 300. The largest first: 500, and then nothing fits.
    "subset_sum": (((620,), (500, 300, 300)), 600, 500, ((1, 2), "The sum is 800, more than 620.")),
    # Three vertices of an odd ring of five; all but two are three as well.
    "vertex_cover": (PENTAGON, 3, 3, ((1, 3), "The edge 4-5 has no chosen end.")),
}
"""Kind -> instance, optimum, baseline, an answer and what is said of it."""


@pytest.mark.parametrize("kind", PROBLEMS)
def test_example_worked_by_hand(kind: str) -> None:
    rows, optimum, baseline, (answer, verdict) = HAND[kind]
    problem = PROBLEMS[kind]
    assert problem.optimum(rows) == optimum
    assert problem.baseline(rows) == pytest.approx(baseline)
    assert problem.evaluate(rows, answer) == verdict


# ---- a second implementation -------------------------------------------------------------------------------------


def judged(kind: str, rows: Instance, answer: Answer) -> int | None:
    """Return the value of an answer, None where it is not feasible."""
    head, rest = rows[0][0], rows[1:]
    edges = [set(row[:2]) for row in rest]
    match kind:
        case "bin_packing":
            loads = Counter[int]()
            for size, place in zip(rest[0], answer, strict=True):
                loads[place] += size
            return len(loads) if all(load <= head for load in loads.values()) else None
        case "clique":
            return len(answer) if all(set(pair) in edges for pair in combinations(answer, 2)) else None
        case "coloring":
            return len(set(answer)) if all(len({answer[end - 1] for end in edge}) == 2 for edge in edges) else None
        case "knapsack":
            chosen = np.array(rest)[np.array(answer) - 1].sum(axis=0)
            return int(chosen[1]) if chosen[0] <= head else None
        case "makespan":
            return int(max(np.bincount(answer, weights=rest[0])))
        case "max_cut":
            return sum(row[2] for row in rest if len(set(row[:2]) & set(answer)) == 1)
        case "max_sat":
            return sum(any(literal in answer for literal in clause) for clause in rest)
        case "set_cover":
            return len(answer) if set().union(*(rest[one - 1] for one in answer)) == set(range(1, head + 1)) else None
        case "subset_sum":
            total = sum(number for place, number in enumerate(rest[0], start=1) if place in answer)
            return total if total <= head else None
        case _:
            return len(answer) if all(edge & set(answer) for edge in edges) else None


def all_answers(problem: HardProblem, rows: Instance) -> Iterator[Answer]:
    """Yield every answer, up to the names of groups."""
    num = problem.num_things(rows)
    match problem.form:
        case AnswerForm.SUBSET:
            for size in range(1, num + 1):
                yield from combinations(range(1, num + 1), size)
        case AnswerForm.LITERALS:
            for signs in product((1, -1), repeat=num):
                yield tuple(sign * number for number, sign in enumerate(signs, start=1))
        case AnswerForm.GROUPS:
            partial: list[Answer] = [()]
            for _ in range(num):
                limit = problem.num_groups(rows)
                partial = [
                    (*row, group) for row in partial for group in range(1, min(limit, max(row, default=0) + 1) + 1)
                ]
            yield from partial


def drawn(kind: str, seed: int) -> Instance:
    return PROBLEMS[kind].draw(np.random.default_rng(seed), PROBLEMS[kind].sizes[0])


@pytest.mark.parametrize("kind", PROBLEMS)
def test_optimum_is_the_best_of_all_answers(kind: str) -> None:
    problem = PROBLEMS[kind]
    best = max if problem.is_maximum else min
    for seed in range(NUM_INSTANCES):
        rows = drawn(kind, seed)
        values = [value for answer in all_answers(problem, rows) if (value := judged(kind, rows, answer)) is not None]
        solution = problem.solve(rows)
        assert problem.is_well_formed(rows, solution)
        assert best(values) == problem.optimum(rows) == judged(kind, rows, solution), rows


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(PROBLEMS)), st.integers(0, 40), st.data())
def test_an_answer_is_accepted_where_the_second_implementation_accepts_it(
    kind: str, seed: int, data: st.DataObject
) -> None:
    problem, rows = PROBLEMS[kind], drawn(kind, seed)
    num = problem.num_things(rows)
    numbers = data.draw(st.lists(st.integers(-1, num + 1), max_size=num + 1))
    match problem.form:
        case AnswerForm.SUBSET:
            is_well_formed = 0 < len(set(numbers)) == len(numbers) and set(numbers) <= set(range(1, num + 1))
        case AnswerForm.GROUPS:
            is_well_formed = len(numbers) == num and set(numbers) <= set(range(1, problem.num_groups(rows) + 1))
        case AnswerForm.LITERALS:
            is_well_formed = sorted(abs(number) for number in numbers) == [*range(1, num + 1)]
    assert problem.is_well_formed(rows, tuple(numbers)) == is_well_formed
    answer = tuple(numbers) if is_well_formed else data.draw(st.sampled_from([*all_answers(problem, rows)]))
    value = problem.evaluate(rows, answer)
    assert judged(kind, rows, answer) == (value if isinstance(value, int) else None)


# ---- symmetries --------------------------------------------------------------------------------------------------


def renamed(kind: str, rows: Instance, rng: np.random.Generator) -> Instance:
    """Give the things other names and another order."""
    num = rows[0][0]
    if kind in ("bin_packing", "makespan", "subset_sum"):
        return (rows[0], tuple(rng.permutation(rows[1]).tolist()))
    mixed = [rows[1:][place] for place in rng.permutation(len(rows) - 1).tolist()]
    if kind == "knapsack":
        return (rows[0], *mixed)
    names = dict(zip(range(1, num + 1), (rng.permutation(num) + 1).tolist(), strict=True))
    if kind == "set_cover":
        return (rows[0], *(tuple(sorted(names[element] for element in row)) for row in mixed))
    if kind == "max_sat":
        signs = dict(zip(names, rng.choice([1, -1], size=num).tolist(), strict=True))
        names |= {-name: -other for name, other in names.items()}
        signed = [[names[literal] * signs[abs(literal)] for literal in row] for row in mixed]
        return (rows[0], *(tuple(sorted(row, key=abs)) for row in signed))
    return (rows[0], *((names[two], names[one], *rest) for one, two, *rest in mixed))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(PROBLEMS)), st.integers(0, 10_000), st.integers(0, 2))
def test_canonical_form_optimum_and_baseline_do_not_depend_on_names(kind: str, seed: int, size: int) -> None:
    problem, rng = PROBLEMS[kind], np.random.default_rng(seed)
    rows = problem.draw(rng, problem.sizes[size])
    other, canonical = renamed(kind, rows, rng), problem.canonical(rows)
    assert problem.canonical(other) == canonical == problem.canonical(canonical)
    assert problem.optimum(other) == problem.optimum(rows) == problem.optimum(canonical)
    assert problem.baseline(other) == pytest.approx(problem.baseline(rows))
    assert len(canonical) == len(rows)


@pytest.mark.parametrize("num, count", [(1, 1), (2, 2), (3, 4), (4, 11), (5, 34)])
def test_there_are_as_many_canonical_graphs_as_graphs_up_to_names(num: int, count: int) -> None:
    # The numbers of graphs with so many unlabeled vertices: 1, 2, 4, 11, 34.
    pairs = list(combinations(range(1, num + 1), 2))
    graphs = [
        ((num,), *(pair for pair, kept in zip(pairs, choice, strict=True) if kept))
        for choice in product((False, True), repeat=len(pairs))
    ]
    assert len({canonical_graph(graph) for graph in graphs}) == count


@given(st.permutations(range(1, 8)))
def test_vertices_that_only_their_cycles_tell_apart_have_one_canonical_order(names: list[int]) -> None:
    # A triangle and a square: every vertex has two neighbors, so refinement alone tells none from another.
    edges = [(1, 2), (2, 3), (1, 3), (4, 5), (5, 6), (6, 7), (4, 7)]
    graph: Instance = ((7,), *edges)
    assert canonical_graph(((7,), *((names[one - 1], names[two - 1]) for one, two in edges))) == canonical_graph(graph)


def test_different_instances_keep_different_canonical_forms() -> None:
    for kind, problem in PROBLEMS.items():
        forms = {problem.canonical(drawn(kind, seed)) for seed in range(40)}
        assert len(forms) >= 20, kind


@settings(max_examples=50)
@given(st.integers(1, 6), st.data())
def test_best_assignment_is_the_best_of_all(num: int, data: st.DataObject) -> None:
    tables = st.integers(0, (1 << (1 << num)) - 1)
    terms = data.draw(st.lists(st.tuples(st.integers(0, 9), tables), max_size=8))
    sums = [sum(weight for weight, table in terms if table >> choice & 1) for choice in range(1 << num)]
    assert sums[best_assignment(num, terms)] == max(sums)
    for index, table in enumerate(variable_tables(num)):
        assert all((table >> choice & 1) == (choice >> index & 1) for choice in range(1 << num))
