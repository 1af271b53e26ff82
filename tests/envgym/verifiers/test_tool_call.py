"""ToolCallMatch: cases by hand, and the laws: order does not count, 1 only for equal calls, a repair never costs."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym import Scored, Split, Task, ToolCall
from envgym.authoring import ListTasks, RubricEnv, TaskDraft
from envgym.conformance.env_under_test import play
from envgym.core.json_types import JsonObject, JsonValue
from envgym.errors import InvalidInput
from envgym.parsing import tool_call_action
from envgym.verifiers import ToolCallMatch
from envgym.verifiers.tool_call import ExpectedCall, match_calls, same_value


def task(*calls: JsonValue) -> Task:
    return Task(id="t", prompt="", payload={"answer": [*calls]}, split=Split.TRAIN)


def expect(name: str, **arguments: JsonValue) -> JsonObject:
    return {"name": name, "arguments": arguments}


MOVE = tool_call_action("move", piece="rook", to="e4")


@pytest.mark.parametrize(
    "answer, expected, score",
    [
        # S_max = 1 + (1 + 2) = 4. All equal: (1 + 1 + 2) / 4 = 1, and the format is right.
        (MOVE, [expect("move", piece="rook", to="e4")], 1.0),
        # One value of two is wrong: (1 + 1 + 1) / 4 = 3/4, (1 + 6 * 3/4) / 7 = 11/14.
        (MOVE, [expect("move", piece="king", to="e4")], 11 / 14),
        # Names {piece, to} of {piece, to, by} overlap by 2/3, S_max = 5: (1 + 2/3 + 2) / 5 = 11/15: 27/35.
        (MOVE, [expect("move", piece="rook", to="e4", by="white")], 27 / 35),
        # {piece, to} of which only piece is expected: 1/2; S_max = 3: (1 + 1/2 + 1) / 3 = 5/6, (1 + 5) / 7.
        (MOVE, [expect("move", piece="rook")], 6 / 7),
        # Another tool: names 0 of 2, nothing to pair, only the format: 1/7.
        (MOVE, [expect("resign")], 1 / 7),
        # One call of the two: names 1/2, S_max = 1 + 3 + 1 = 5: (1/2 + 1 + 2) / 5 = 7/10, (1 + 6 * 7/10) / 7 = 26/35.
        (MOVE, [expect("resign"), expect("move", piece="rook", to="e4")], 26 / 35),
        # The same call twice where it is expected once: names 1/2: (1/2 + 1 + 2) / 4 = 7/8, (1 + 21/4) / 7 = 25/28.
        (f"{MOVE}{MOVE}", [expect("move", piece="rook", to="e4")], 25 / 28),
        # One of two calls cannot be read: no point for the format, correctness 1: 6/7.
        (f"{MOVE}<tool_call>{{</tool_call>", [expect("move", piece="rook", to="e4")], 6 / 7),
        ("I resign.", [expect("resign")], 0.0),
        ("Nothing is to be done.", [], 1.0),
        (MOVE, [], 0.0),
        # Two calls of one tool in the wrong order for a greedy pairing: the best one pairs each with its equal.
        (
            f"{tool_call_action('go', x=1, y=2)}{tool_call_action('go', x=1, y=1)}",
            [expect("go", x=1, y=1), expect("go", x=1, y=2)],
            1.0,
        ),
    ],
)
def test_scores_by_hand(answer: str, expected: list[JsonValue], score: float) -> None:
    assert ToolCallMatch()(answer, task(*expected)).score == pytest.approx(score, abs=1e-12)


def test_reward_of_toolrl_is_its_affine_image() -> None:
    found = match_calls([ToolCall(name="move", arguments={"piece": "rook", "to": "e4"})], [KING])
    # format + 6 S / S_max - 3 = 1 + 6 * 3/4 - 3 = 2.5, from -3 to 4.
    assert found.format + 6 * found.correctness - 3 == 2.5
    assert found.score() == pytest.approx((2.5 + 3) / 7, abs=1e-12)


KING = ExpectedCall.equal_to(ToolCall(name="move", arguments={"piece": "king", "to": "e4"}))


def test_an_optional_argument_that_is_left_out_is_right_and_a_wrong_one_is_not() -> None:
    item = ExpectedCall(
        name="move",
        accepts={"to": lambda value: value == "e4", "fast": lambda value: value is True},
        optional=frozenset({"fast"}),
    )
    tried: list[JsonObject] = [{"to": "e4"}, {"to": "e4", "fast": True}, {"to": "e4", "fast": False}, {"fast": True}]
    scores = [match_calls([ToolCall(name="move", arguments=given)], [item]).correctness for given in tried]
    # S_max = 4. The third has one value of two, the fourth one argument of two and its value: (1 + 1/2 + 1) / 4.
    assert scores == [1.0, 1.0, 3 / 4, 5 / 8]


@pytest.mark.parametrize(
    "left, right, is_same",
    [
        (1, 1.0, True),
        (1, True, False),
        (False, 0, False),
        ([1, {"a": [True]}], [1.0, {"a": [True]}], True),
        ([1, {"a": [True]}], [1, {"a": [1]}], False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ("1", 1, False),
        (None, None, True),
    ],
)
def test_values_are_equal_as_json(left: JsonValue, right: JsonValue, is_same: bool) -> None:
    assert same_value(left, right) is same_value(right, left) is is_same


@pytest.mark.parametrize("value", ["move", [1], [{"name": 3}], [{"name": "a", "arguments": [1]}], [{}]])
def test_a_key_that_lists_no_calls_is_refused(value: JsonValue) -> None:
    with pytest.raises(InvalidInput, match=r"payload field 'answer' must be a list of .* \(task t\); correct the task"):
        ToolCallMatch()("", Task(id="t", prompt="", payload={"answer": value}, split=Split.TRAIN))


def test_no_weight_outside_the_unit_interval() -> None:
    with pytest.raises(InvalidInput, match=r"format_weight must lie in \[0, 1\], got 1.5"):
        ToolCallMatch(format_weight=1.5)


def test_in_a_rubric_all_calls_of_the_episode_count() -> None:
    def look_up(word: str) -> str:
        """Look a word up."""
        return f"{word} is a word"

    tasks = ListTasks([TaskDraft(prompt="Look up lamp.", payload={"answer": [expect("look_up", word="lamp")]})])
    env = RubricEnv(tasks=tasks, rubric=ToolCallMatch(), functions=[look_up], max_turns=3)
    split = Split.TRAIN if tasks.size(Split.TRAIN) else Split.TEST
    script = [tool_call_action("look_up", word="lamp"), "Done."]
    episode = play(env, lambda turn, _: script[turn], seed=0, task=tasks.task(split, 0))
    assert episode.turns[-1].reward == Scored(value=1.0, components={"answer": 1.0})


calls = st.lists(
    st.builds(
        ToolCall,
        name=st.sampled_from(("a", "b")),
        arguments=st.dictionaries(st.sampled_from("xyz"), st.integers(0, 1), max_size=3),
    ),
    max_size=4,
)


def score(made: Sequence[ToolCall], wanted: Sequence[ToolCall]) -> float:
    return match_calls(made, [ExpectedCall.equal_to(call) for call in wanted]).score()


def plain(items: Sequence[ToolCall]) -> list[tuple[str, list[tuple[str, JsonValue]]]]:
    return sorted((call.name, sorted(call.arguments.items(), key=str)) for call in items)


@given(calls, calls)
def test_order_does_not_count(made: list[ToolCall], wanted: list[ToolCall]) -> None:
    for one, two in itertools.product(itertools.islice(itertools.permutations(made), 6), (wanted, wanted[::-1])):
        assert score(one, two) == pytest.approx(score(made, wanted), abs=1e-12)


@given(calls, calls)
def test_score_is_one_just_for_equal_calls(made: list[ToolCall], wanted: list[ToolCall]) -> None:
    assert 0.0 <= score(made, wanted) <= 1.0
    assert (score(made, wanted) == 1.0) == (plain(made) == plain(wanted))
    assert score(wanted[::-1], wanted) == 1.0


arguments = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 1), max_size=3)


@given(arguments, arguments, st.sampled_from("xyz"))
def test_each_repair_of_an_argument_pays(made: dict[str, int], wanted: dict[str, int], key: str) -> None:
    repaired = {name: value for name, value in made.items() if name != key}
    repaired |= {key: wanted[key]} if key in wanted else {}
    call = ToolCall(name="a", arguments=wanted)
    before, after = (score([ToolCall(name="a", arguments=given)], [call]) for given in (made, repaired))
    assert (after > before) if repaired != made and key in wanted else (after >= before)


@given(calls, calls)
def test_a_missing_call_pays_when_it_is_made(made: list[ToolCall], wanted: list[ToolCall]) -> None:
    for call in wanted:
        if sum(item.name == call.name for item in made) < sum(item.name == call.name for item in wanted):
            assert score([*made, call], wanted) > score(made, wanted)


@given(calls, calls)
def test_calls_of_a_name_are_matched_in_the_best_way(made: list[ToolCall], wanted: list[ToolCall]) -> None:
    made, wanted = ([ToolCall(name="a", arguments=call.arguments) for call in part] for part in (made, wanted))
    few, many = sorted((made, wanted), key=len)

    def worth(one: ToolCall, other: ToolCall) -> float:
        pair = (one, other) if few is made else (other, one)
        found = match_calls(pair[:1], [ExpectedCall.equal_to(pair[1])])
        return found.keys + found.values

    best = max(sum(map(worth, few, order)) for order in itertools.permutations(many, len(few)))
    found = match_calls(made, [ExpectedCall.equal_to(call) for call in wanted])
    assert found.keys + found.values == pytest.approx(best, abs=1e-12)
