"""`puzzles/tsp-v0`: the shortest tour is the shortest, the mean is the mean, and only better tours are paid."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.puzzles._tours import Cities, canonical_cities, distance, length, mean_length, shortest
from envgym.envs.puzzles.tsp import TravelingSalesman, quality_of
from tests.envs.episodes import conformance, play_actions, rewards_of, step_after_fork

SQUARE: Cities = ((0, 0), (0, 30), (40, 30), (40, 0))
maps = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=4, max_size=6, unique=True).map(tuple)


TestTravelingSalesman = conformance("puzzles/tsp-v0", num_tasks=6)
TestTravelingSalesmanWithOneTour = conformance("puzzles/tsp-v0", num_tasks=3, cities=6, tours=1)


def task_of(cities: Cities) -> Task:
    return Task(id="t", prompt="", payload={"cities": [list(city) for city in cities]}, split=Split.TRAIN)


def say(env: TravelingSalesman, *tours: str) -> ObservedEpisode:
    return play_actions(env, task_of(SQUARE), *tours)


def test_distances_and_lengths_by_hand() -> None:
    # Sides 30 and 40, diagonals 50. Around: 140. Crossing along the long sides: 40 + 50 + 40 + 50 = 180, short: 160.
    assert (distance((0, 0), (40, 30)), distance((0, 0), (1, 1)), distance((0, 0), (1, 2))) == (50, 1, 2)
    assert [length(SQUARE, tour) for tour in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2))] == [140, 180, 160]
    assert mean_length(SQUARE) == pytest.approx((140 + 180 + 160) / 3)
    assert shortest(SQUARE)[0] == 140


@settings(max_examples=25)
@given(maps)
def test_shortest_and_mean_are_those_of_all_tours(cities: Cities) -> None:
    lengths = [length(cities, (0, *order)) for order in permutations(range(1, len(cities)))]
    found, order = shortest(cities)
    assert found == min(lengths) == length(cities, order)
    assert mean_length(cities) == pytest.approx(sum(lengths) / len(lengths))


def test_hand_played_map_pays_what_is_better_than_before() -> None:
    env = TravelingSalesman(tours=4)
    # The mean is 160, the shortest 140: 180 and 160 are worth 0, 140 is worth 1.
    episode = say(env, "1 3 2 4", "<answer>1 -> 2 -> 4 -> 3 -> 1</answer>", "1, 3, 2, 4", "2 3 4 1")
    assert [turn.observation for turn in episode.turns] == [
        "Length 180. Best 180. Tours left: 3.",
        "Length 160. Best 160. Tours left: 2.",
        "Length 180. Best 160. Tours left: 1.",
        "Length 140. It is the shortest.",
    ]
    assert rewards_of(episode) == [0.0, 0.0, 0.0, 1.0]
    assert episode.ending is Ending.TERMINATED
    assert quality_of(SQUARE, 150) == pytest.approx(0.5)


def test_last_tour_ends_the_episode_with_the_best_quality() -> None:
    episode = say(TravelingSalesman(tours=1), "1 2 4 3")
    assert (episode.turns[0].observation, episode.reward) == ("Length 160. The shortest has 140.", 0.0)
    assert episode.ending is Ending.TERMINATED


@pytest.mark.parametrize(
    "tour", ["", "1 2 3", "1 2 3 3", "1 2 3 5", "0 1 2 3", "1 2 3 4 2", "one two three four", "-1 2 3 4 5"]
)
def test_what_is_no_tour_costs_no_tour(tour: str) -> None:
    episode = say(TravelingSalesman(), tour, "1 3 2 4")
    assert episode.turns[0].observation.startswith("Say the numbers of all 8 cities")
    assert episode.turns[1].observation.endswith("Tours left: 2.")


@settings(max_examples=25)
@given(maps, st.integers(0, 7))
def test_turned_moved_and_renamed_maps_are_the_same_task(cities: Cities, turn: int) -> None:
    left, low = min(x for x, _ in cities), min(y for _, y in cities)
    other = [(x - left, y - low) for x, y in cities][::-1]
    other = [(99 - x if turn & 1 else x, 99 - y if turn & 2 else y) for x, y in other]
    other = [(y, x) if turn & 4 else (x, y) for x, y in other]
    assert canonical_cities(tuple(other)) == canonical_cities(cities)
    assert shortest(tuple(other))[0] == shortest(cities)[0]


@pytest.mark.parametrize("cities", [6, 10])
def test_oracle_says_a_shortest_tour(cities: int) -> None:
    env = TravelingSalesman(cities=cities)
    for split in Split:
        episode = play(env, oracle_of(env), seed=0, task=env.tasks.task(split, 0))
        assert (episode.reward, len(episode.turns)) == (1.0, 1)


@settings(max_examples=15)
@given(st.lists(st.permutations(range(1, 9)), min_size=1, max_size=3))
def test_turns_add_up_to_the_quality_of_the_best_tour(tours: list[list[int]]) -> None:
    env = TravelingSalesman()
    env.reset(seed=4)
    cities, total, best = env.state.cities, 0.0, 0.0
    for tour in tours:
        result = env.step(" ".join(map(str, tour)))
        total += result.reward
        best = max(best, quality_of(cities, length(cities, [city - 1 for city in tour])))
        assert result.reward >= 0
        if result.terminated:
            break
    assert total == pytest.approx(best)


def test_tours_without_looking_earn_at_most_the_declared_chance() -> None:
    draw, env = np.random.default_rng(0), TravelingSalesman()
    total = 0.0
    for index in range(60):
        env.reset(options={"split": "train", "index": index})
        cities = env.state.cities
        total += max(quality_of(cities, length(cities, draw.permutation(8).tolist())) for _ in range(3))
    assert total / 60 <= env.chance_score + 0.1  # three standard errors of the mean


def test_fork_goes_its_own_way() -> None:
    twin, own = step_after_fork(TravelingSalesman(), task_of(SQUARE), "1 2 3 4", "1 3 2 4")
    assert twin.reward == 1.0
    assert own.observation == "Length 180. Best 180. Tours left: 2."
