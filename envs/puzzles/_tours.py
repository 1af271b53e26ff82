"""Round tours through cities in the plane: distances, the shortest tour, the mean of all, and what is the same."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

City = tuple[int, int]
Cities = tuple[City, ...]

SIDE = 100
"""Coordinates are whole numbers below."""


def distance(one: City, other: City) -> int:
    """Return the distance, rounded to the nearest whole number as TSPLIB does."""
    return int(math.dist(one, other) + 0.5)


def length(cities: Cities, tour: Sequence[int]) -> int:
    return sum(distance(cities[tour[index - 1]], cities[tour[index]]) for index in range(len(tour)))


def mean_length(cities: Cities) -> float:
    """Return the mean over all tours: each pair of n cities is next to each other in a share 2 / (n - 1) of them."""
    return 2 / (len(cities) - 1) * sum(distance(one, other) for one, other in combinations(cities, 2))


@lru_cache(maxsize=4096)
def shortest(cities: Cities) -> tuple[int, tuple[int, ...]]:
    """Return length and order of a shortest tour, by dynamic programming over sets of cities (Held and Karp).

    C(S, j) = min_k C(S - {j}, k) + d(k, j): the shortest way from the first city through all of S that ends in j.
    """
    num = len(cities) - 1
    away = [distance(cities[0], city) for city in cities[1:]]
    between = [[distance(one, other) for other in cities[1:]] for one in cities[1:]]
    best: list[dict[int, tuple[int, int]]] = [{} for _ in range(1 << num)]
    for city in range(num):
        best[1 << city][city] = (away[city], -1)
    for visited in range(1, 1 << num):
        for last, (so_far, _) in best[visited].items():
            row = between[last]
            for city in range(num):
                if not visited >> city & 1:
                    options, total = best[visited | 1 << city], so_far + row[city]
                    if city not in options or total < options[city][0]:
                        options[city] = (total, last)
    visited = (1 << num) - 1
    last = min(best[visited], key=lambda city: best[visited][city][0] + away[city])
    total, order = best[visited][last][0] + away[last], []
    while last != -1:
        order.append(last + 1)
        visited, last = visited ^ 1 << last, best[visited][last][1]
    return total, (0, *order)


def canonical_cities(cities: Cities) -> Cities:
    """Return the first of the maps that are the same up to names, place, mirroring and quarter turns."""
    return min(_placed([_turned(city, turn) for city in cities]) for turn in range(8))


def _turned(city: City, turn: int) -> City:
    x, y = (SIDE - 1 - city[0] if turn & 1 else city[0]), (SIDE - 1 - city[1] if turn & 2 else city[1])
    return (y, x) if turn & 4 else (x, y)


def _placed(cities: Sequence[City]) -> Cities:
    left, low = min(x for x, _ in cities), min(y for _, y in cities)
    return tuple(sorted((x - left, y - low) for x, y in cities))
