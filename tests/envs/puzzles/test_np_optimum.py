"""The exact optimum of `puzzles/np-v0` is that of integer programs, which SciPy solves, at the default size."""

from collections.abc import Iterable, Mapping
from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]  # SciPy has no stubs

from envgym.envs.puzzles._np.problem import Instance
from envgym.envs.puzzles._np.problems import PROBLEMS

NUM_INSTANCES = 12
MEDIUM = 1

Name = tuple[str, int] | tuple[str, int, int]
Row = tuple[Mapping[Name, float], float, float]
"""Coefficients, lowest and highest value of a constraint."""
INF = float("inf")


def optimum_of(cost: Mapping[Name, float], rows: Iterable[Row], *, real: Iterable[Name] = ()) -> int:
    """Return the lowest cost over variables from 0 to 1; those in `real` are unbounded numbers."""
    rows = list(rows)
    names = {
        name: index for index, name in enumerate(dict.fromkeys([*cost, *(name for row in rows for name in row[0])]))
    }
    matrix, weights = np.zeros((len(rows), len(names))), np.zeros(len(names))
    for number, (row, *_) in enumerate(rows):
        for name, factor in row.items():
            matrix[number, names[name]] += factor
    for name, factor in cost.items():
        weights[names[name]] = factor
    is_real = np.array([name in set(real) for name in names])
    low, high = [row[1] for row in rows], [row[2] for row in rows]
    result = milp(
        weights,
        constraints=LinearConstraint(matrix, low, high),
        integrality=1 - is_real,
        bounds=Bounds(0, np.where(is_real, np.inf, 1)),
        options={"mip_rel_gap": 0},
    )
    assert result.success, result.message
    return round(float(result.fun))


def reference(kind: str, rows: Instance) -> int:
    """Return the optimum of an integer program; of a maximum it is negative."""
    head, rest = rows[0][0], rows[1:]
    count = range(1, len(rest) + 1)
    vertices = range(1, head + 1)
    match kind:
        case "knapsack":
            weight: dict[Name, float] = {("x", item): rest[item - 1][0] for item in count}
            return optimum_of({("x", item): -rest[item - 1][1] for item in count}, [(weight, 0, head)])
        case "subset_sum":
            numbers: dict[Name, float] = {("x", place): number for place, number in enumerate(rest[0])}
            return optimum_of({name: -number for name, number in numbers.items()}, [(numbers, 0, head)])
        case "max_sat":
            true: list[Row] = [
                (
                    {("z", row): 1, **{("x", abs(one)): -1 if one > 0 else 1 for one in clause}},
                    -INF,
                    sum(c < 0 for c in clause),
                )
                for row, clause in enumerate(rest)
            ]
            return optimum_of({("z", row): -1 for row in range(len(rest))}, true)
        case "clique":
            apart = [pair for pair in combinations(vertices, 2) if pair not in rest]
            no_pair: list[Row] = [({("x", one): 1, ("x", two): 1}, 0, 1) for one, two in apart]
            return optimum_of({("x", vertex): -1 for vertex in vertices}, no_pair)
        case "vertex_cover":
            ends: list[Row] = [({("x", one): 1, ("x", two): 1}, 1, 2) for one, two in rest]
            return optimum_of({("x", vertex): 1 for vertex in vertices}, ends)
        case "set_cover":
            held: list[Row] = [
                ({("x", one): 1 for one in count if element in rest[one - 1]}, 1, INF) for element in vertices
            ]
            return optimum_of({("x", one): 1 for one in count}, held)
        case "max_cut":
            cut: list[Row] = []
            for number, (one, two, _) in enumerate(rest):
                cut += [({("z", number): 1, ("x", one): -1, ("x", two): -1}, -INF, 0)]
                cut += [({("z", number): 1, ("x", one): 1, ("x", two): 1}, -INF, 2)]
            return optimum_of({("z", number): -row[2] for number, row in enumerate(rest)}, cut)
        case _:
            return grouped(kind, rows)


def grouped(kind: str, rows: Instance) -> int:
    """Return the optimum of a problem whose answers are groups: x says what is in which, y which is used."""
    head, rest = rows[0][0], rows[1:]
    things = range(head if kind == "coloring" else len(rest[0]))
    groups = range(head if kind == "makespan" else max(PROBLEMS[kind].solve(rows)) + 1)
    once: list[Row] = [({("x", thing, group): 1 for group in groups}, 1, 1) for thing in things]
    if kind == "makespan":
        last: Name = ("last", 0)
        ends: list[Row] = [
            ({last: -1, **{("x", job, machine): rest[0][job] for job in things}}, -INF, 0) for machine in groups
        ]
        return optimum_of({last: 1}, [*once, *ends], real=[last])
    used: list[Row]
    if kind == "coloring":
        used = [
            ({("y", group): -1, ("x", one - 1, group): 1, ("x", two - 1, group): 1}, -INF, 0)
            for (one, two), group in product(rest, groups)
        ]
        used += [({("y", group): -1, ("x", thing, group): 1}, -INF, 0) for thing, group in product(things, groups)]
    else:
        used = [
            ({("y", group): -head, **{("x", item, group): rest[0][item] for item in things}}, -INF, 0)
            for group in groups
        ]
    in_order: list[Row] = [({("y", group): 1, ("y", group + 1): -1}, 0, 1) for group in groups[:-1]]
    return optimum_of({("y", group): 1 for group in groups}, [*once, *used, *in_order])


@pytest.mark.parametrize("kind", PROBLEMS)
def test_optimum_is_that_of_an_integer_program(kind: str) -> None:
    problem, rng = PROBLEMS[kind], np.random.default_rng(7)
    for _ in range(NUM_INSTANCES):
        rows = problem.draw(rng, problem.sizes[MEDIUM])
        assert problem.optimum(rows) == abs(reference(kind, rows)), rows
