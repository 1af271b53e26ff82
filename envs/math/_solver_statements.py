"""Statements about two numbers that change in layers, each in one of two ways: all ways together are 2^layers cases.

A relation that holds after each layer, whichever way it went, makes each layer a case of its own.
"""

from dataclasses import dataclass

from envgym.authoring.sampler import Sampler

FAMILIES = ("sums", "bounds")
_LAYERS = {1: 10, 2: 12, 3: 14}
STRIDE = 2
"""Layers from one fact of the drawn proof to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedStatement:
    """Premises and a goal that follows from them, with facts that lead there."""

    variables: tuple[str, ...]
    premises: tuple[str, ...]
    goal: str
    facts: tuple[str, ...]
    """In order; the goal is the last."""


def draw_bounded(sampler: Sampler, family: str, level: int) -> BoundedStatement:
    """Draw a statement about `x + weight y`, which stays equal to a number (`sums`) or above it (`bounds`)."""
    layers, weight = _LAYERS[level], sampler.between(1, 4)
    sign = "=" if family == "sums" else ">="
    x, y = sampler.between(1, 20), sampler.between(1, 20)
    total = x + weight * y
    if level == 1:
        premises = [f"{_sum(0, weight)} {sign} {total}"]
    else:
        premises = [f"x0 {sign} {x}", f"y0 {sign} {y}"]
    facts = []
    for layer in range(1, layers + 1):
        gain = sampler.between(-5, 5)
        one, two = sampler.some(range(-6, 7), 2)
        slack = sampler.between(1, 3) if family == "bounds" else 0
        ways = [(gain - weight * one, one), (gain - weight * two + slack, two)]
        ways = sampler.some(ways, 2)
        premises.append(
            " or ".join(f"({_moved('x', layer, by)} and {_moved('y', layer, with_)})" for by, with_ in ways)
        )
        total += gain
        if layer % STRIDE == 0 and layer < layers:
            facts.append(f"{_sum(layer, weight)} {sign} {total}")
    goal = f"{_sum(layers, weight)} {sign} {total}"
    if level > 1:
        facts.append(goal)
        goal = _weaker(sampler, family, layers, weight, total)
    variables = tuple(f"{name}{layer}" for layer in range(layers + 1) for name in "xy")
    return BoundedStatement(variables=variables, premises=tuple(premises), goal=goal, facts=(*facts, goal))


def _weaker(sampler: Sampler, family: str, layer: int, weight: int, total: int) -> str:
    """Return a goal that follows from the relation, and does not name it."""
    if family == "bounds":
        return f"{_sum(layer, weight)} > {total - sampler.between(2, 5)}"
    sign, by = sampler.one((("!=", -2), ("!=", -1), ("!=", 1), ("!=", 2), ("<", 2), ("<", 3), (">", -2), (">", -3)))
    return f"{_sum(layer, weight)} {sign} {total + by}"


def _sum(layer: int, weight: int) -> str:
    return f"x{layer} + {f'{weight}*' if weight > 1 else ''}y{layer}"


def _moved(name: str, layer: int, by: int) -> str:
    change = f" {'+' if by > 0 else '-'} {abs(by)}" if by else ""
    return f"{name}{layer} = {name}{layer - 1}{change}"
