"""`math/instructions-v0`: texts are paid by the constraints that hold; what is no text of one's own earns nothing."""

import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending, Scored, total
from envgym.envs.math._instructions.constraint import Constraint
from envgym.envs.math._instructions.drawing import has_held_out_pair
from envgym.envs.math._instructions.kinds import HELD_OUT_PAIRS, KINDS
from envgym.envs.math.instructions import CHANCE, MAX_ATTEMPTS, OWN_WORDS, REWARDS, Instructions
from tests.envs.episodes import conformance, play_actions, rewards_of

# 8 to 12 words, the word tea twice, two bullets, no comma.
TEA = (
    Constraint("length", (8, 12)),
    Constraint("topic", (2,), ("tea",)),
    Constraint("bullets", (2, 2)),
    Constraint("no_commas"),
)
GOOD = "Tea is hot.\n- Green tea cools\n- so does black"


TestInstructions = conformance("math/instructions-v0", num_tasks=10)
TestInstructionsWithAttempts = conformance(
    "math/instructions-v0", num_tasks=6, constraints=5, reward="share", attempts=3
)


def task_of(
    constraints: Sequence[Constraint] = TEA, prompt: str = "Write something about what you like to drink."
) -> Task:
    return Task(
        id="t", prompt=prompt, payload={"constraints": [item.to_json() for item in constraints]}, split=Split.TRAIN
    )


def say(env: Instructions, *texts: str, task: Task | None = None) -> ObservedEpisode:
    return play_actions(env, task or task_of(), *texts)


def parts(episode: ObservedEpisode) -> dict[str, float]:
    reward = total(turn.reward for turn in episode.turns)
    assert isinstance(reward, Scored)
    return dict(reward.components)


def test_a_text_that_meets_all_constraints_is_paid_1() -> None:
    for reward in REWARDS:
        episode = say(Instructions(reward=reward), GOOD)
        assert (episode.reward, episode.ending) == (1.0, Ending.TERMINATED)
        assert str(episode.turns[0].observation) == "All constraints hold."
        assert set(parts(episode).values()) == {1.0}


def test_reply_names_what_does_not_hold_and_ends_after_the_last_attempt() -> None:
    episode = say(Instructions(), "Tea is hot, and green tea cools fast.\n- so")
    assert str(episode.turns[0].observation) == (
        "These constraints do not hold:\n- Write exactly 2 bullets.\n- Use no comma."
    )
    assert (episode.reward, episode.ending) == (0.0, Ending.TERMINATED)
    assert parts(episode) == {
        "bullets": 0.0, "no_commas": 0.0, "length": 1.0, "topic": 1.0, "own_words": 1.0,
        "all": 0.0, "share": 0.0, "loose": 0.0,
    }  # fmt: skip


def test_share_pays_each_constraint_and_turns_add_up_to_the_best_text() -> None:
    half = "Tea is hot and green tea cools fast too."  # no comma, no bullets
    episode = say(Instructions(reward="share", attempts=3), half, "tea", GOOD)
    assert rewards_of(episode) == [0.5, 0.0, 0.5]
    assert set(parts(episode).values()) == {1.0}
    assert str(episode.turns[0].observation).endswith("- Write exactly 2 bullets.\nAttempts left: 2.")


def test_all_pays_nothing_for_a_part() -> None:
    episode = say(Instructions(attempts=2), "Tea is hot and green tea cools fast too.", GOOD)
    assert rewards_of(episode) == [0.0, 1.0]


@pytest.mark.parametrize(
    "text, failed",
    [
        ("", ["length", "topic"]),
        ("tea tea", ["length"]),
        ("tea tea tea tea tea tea tea tea", ["length"]),  # one different word, four are asked for
        ("hot water with leaves from far away lands", ["topic"]),
        ("write something about what you like to drink", ["topic"]),  # the prompt: a copy, too
        ("tea tea write something about what you like to drink", []),
    ],
)
@pytest.mark.parametrize("reward", REWARDS)
def test_what_is_no_text_about_the_topic_earns_nothing(reward: str, text: str, failed: list[str]) -> None:
    task = task_of((*TEA[:2], Constraint("lowercase"), Constraint("letter_absent", (), ("z",))))
    episode = say(Instructions(reward=reward), text, task=task)
    found = parts(episode)
    assert [name for name in ("length", "topic") if not found[name]] == failed
    assert (episode.reward, found["share"], found["loose"]) == (0.0, 0.0, 0.0)
    assert (found["lowercase"], found["letter_absent"]) == (1.0, 1.0)
    if not failed:
        assert str(episode.turns[0].observation) == f"These constraints do not hold:\n- {OWN_WORDS}"


@pytest.mark.parametrize(
    "text, is_loose",
    [
        ("Here is it, friend:\nTea is hot.\n- Green tea cools\n- so does", 1.0),  # without the first line
        ("Tea is hot.\n- Green tea cools\n- so does\nBye, then", 1.0),
        ("Tea is hot.\n- Green tea cools\nso does black, or not", 0.0),
    ],
)
def test_loose_forgives_first_and_last_lines(text: str, is_loose: float) -> None:
    found = parts(say(Instructions(), text))
    assert (found["all"], found["loose"]) == (0.0, is_loose)


def test_loose_forgives_asterisks() -> None:
    task = task_of((*TEA[:2], Constraint("start", (), ("Green tea",))))
    found = parts(say(Instructions(), "**Green tea** is hot and black tea is cold.", task=task))
    assert (found["start"], found["all"], found["loose"]) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("num", range(1, 6))
def test_oracle_meets_the_tasks_of_both_splits(num: int) -> None:
    env = Instructions(constraints=num)
    for split in Split:
        for index in range(8):
            episode = play(env, oracle_of(env), seed=0, task=env.tasks.task(split, index))
            assert (episode.reward, len(episode.turns)) == (1.0, 1)
            assert len(parts(episode)) == num + 6


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**4), st.lists(st.text(max_size=200), min_size=1, max_size=3), st.sampled_from(REWARDS))
def test_turns_add_up_to_the_components_of_the_best_text(index: int, texts: list[str], reward: str) -> None:
    env = Instructions(reward=reward, attempts=3)
    task = env.tasks.task(Split.TRAIN, index)
    env.reset(options={"task": task})
    texts = [*texts[:-1], f"{env.oracle()} {texts[-1]}"]
    episode = say(env, *texts, task=task)
    alone = [parts(say(Instructions(reward=reward), text, task=task)) for text in texts]
    best = max(alone, key=lambda found: (found["all"], found["share"]))
    assert parts(episode) == pytest.approx(best)
    assert episode.reward == pytest.approx(best[reward])


def test_held_out_pairs_are_in_the_test_split_alone() -> None:
    env = Instructions()
    kinds = {split: [kinds_of(env.tasks.task(split, index)) for index in range(60)] for split in Split}
    assert not any(map(has_held_out_pair, kinds[Split.TRAIN]))
    held_out = [found for found in kinds[Split.TEST] if has_held_out_pair(found)]
    assert 20 <= len(held_out) <= 50
    assert {pair for pair in HELD_OUT_PAIRS for found in held_out if pair <= set(found)} == set(HELD_OUT_PAIRS)
    assert {kind for found in kinds[Split.TRAIN] for kind in found} - {"length", "topic"} == set(KINDS)
    for index in range(10):
        task = env.tasks.task(Split.TEST, index)
        assert task.metadata["held_out_pair"] == has_held_out_pair(kinds_of(task))


def kinds_of(task: Task) -> list[str]:
    return [item.kind for item in constraints_of(task)]


def constraints_of(task: Task) -> tuple[Constraint, ...]:
    env = Instructions()
    env.reset(options={"task": task})
    return env.state.instructions.constraints


def test_prompt_says_every_constraint_once() -> None:
    env = Instructions(constraints=4, attempts=2)
    task = env.tasks.task(Split.TRAIN, 5)
    lines = task.prompt.split("\n")
    assert len(lines) == 1 + 6 + 1
    assert lines[-1] == "Attempts left: 2."
    (reply,) = (str(turn.observation) for turn in say(env, "", task=task).turns)
    assert set(reply.split("\n")[1:-1]) <= set(lines[1:-1])


def test_kinds_are_those_asked_for_and_as_many_as_go_together() -> None:
    env = Instructions(kinds=("lowercase", "uppercase", "title"), constraints=3)
    found = {frozenset(kinds_of(env.tasks.task(Split.TRAIN, index))) - {"length", "topic"} for index in range(20)}
    assert found == {frozenset(("lowercase", "title")), frozenset(("uppercase", "title"))}
    assert env.chance_score == CHANCE["all"]["base"][0]
    assert Instructions(constraints=2, reward="share", attempts=3).chance_score == CHANCE["share"]["2"][2]


def test_chance_is_declared_for_every_setting_and_grows_with_attempts() -> None:
    assert set(CHANCE) == set(REWARDS)
    for rows in CHANCE.values():
        assert set(rows) == {"base", "1", "2", "3", "4", "5"}
        for row in rows.values():
            assert len(row) == MAX_ATTEMPTS
            assert 0 < row[0] <= row[1] <= row[2] < 0.5


def test_forks_share_the_task_and_go_their_own_ways() -> None:
    env = Instructions(attempts=2)
    env.reset(options={"task": task_of()})
    twin = env.fork()
    assert twin.state.instructions is env.state.instructions
    assert twin.step(GOOD).reward == 1.0
    assert not env.step("tea").terminated
    copied = pickle.loads(pickle.dumps(env))
    assert copied.step(GOOD).reward == env.step(GOOD).reward == 1.0
