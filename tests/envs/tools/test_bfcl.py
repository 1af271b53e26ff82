"""`tools/bfcl-v0`: every question's right calls are paid, calls are graded, conversations go on, forks part ways."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.json_types import JsonObject
from envgym.core.messages import ToolCall
from envgym.core.tasks import Split
from envgym.core.turns import Ending, Scored
from envgym.envs.tools._bfcl import source
from envgym.envs.tools._bfcl.apis import golden_calls, golden_run
from envgym.envs.tools.bfcl import MAX_STEPS, Bfcl
from envgym.errors import InvalidInput
from envgym.parsing import tool_call_action
from tests.envs.episodes import conformance
from tests.support.function_calls import NEEDS_BFCL, actions_of, says

TestBfcl = NEEDS_BFCL(conformance("tools/bfcl-v0", num_tasks=6))
TestBfclToolRl = NEEDS_BFCL(
    conformance("tools/bfcl-v0", num_tasks=4, reward="toolrl", kinds=["parallel", "irrelevance", "multi_turn_base"])
)


def episode_of(env: Bfcl, name: str, *actions: str) -> ObservedEpisode:
    """Say things about a question."""
    tasks = [env.tasks.task(split, index) for split in Split for index in range(env.tasks.size(split) or 0)]
    task = next(task for task in tasks if task.id == name)
    return play(env, says(actions), seed=0, task=task, max_turns=len(actions))


# ---- the oracle, splits and chance --------------------------------------------------------------------------------

SIZES = {
    "simple_python": (400, 400),
    "multiple": (200, 200),
    "live_simple": (258, 256),
    "live_multiple": (1053, 1051),
    "parallel": (200, 200),
    "parallel_multiple": (200, 200),
    "live_parallel": (16, 16),
    "live_parallel_multiple": (24, 24),
    "irrelevance": (240, 240),
    "live_irrelevance": (884, 884),
    "multi_turn_base": (200, 200),
    "multi_turn_miss_func": (200, 199),
    "multi_turn_miss_param": (200, 200),
    "multi_turn_long_context": (200, 200),
}
"""Kind -> questions in the wheel, questions that can be answered."""


@NEEDS_BFCL
@pytest.mark.slow
@pytest.mark.parametrize("kind", source.KINDS)
def test_oracle_is_paid_for_every_question(kind: str) -> None:
    env = Bfcl(kinds=kind)
    paid: Counter[tuple[float, Ending | None]] = Counter()
    for split in Split:
        for index in range(env.tasks.size(split) or 0):
            episode = play(env, oracle_of(env), seed=index, task=env.tasks.task(split, index))
            paid[episode.reward, episode.ending] += 1
    in_wheel, tasks = SIZES[kind]
    assert (len(source.questions(kind)), paid) == (in_wheel, {(1.0, Ending.TERMINATED): tasks})


@NEEDS_BFCL
def test_questions_with_a_function_or_words_in_common_are_in_one_split() -> None:
    sides: dict[str, set[Split]] = {}
    for kind in source.KINDS:
        for item in source.questions(kind):
            parts = [item.id.rpartition("_")[2]] if item.is_multi_turn else [json.dumps(doc) for doc in item.functions]
            words = [] if item.is_multi_turn else [str(item.turns[0][-1]["content"])]
            for part in [*parts, *words]:
                sides.setdefault(part, set()).add(source.split_of_question(item))
    assert {len(splits) for splits in sides.values()} == {1}
    assert [Bfcl().tasks.size(split) for split in Split] == [3431, 839]


@NEEDS_BFCL
def test_chance_is_the_share_of_questions_without_a_call() -> None:
    env = Bfcl(kinds=["parallel", "irrelevance"])
    shares = []
    for split in Split:
        names = [env.tasks.task(split, index).id for index in range(env.tasks.size(split) or 0)]
        shares.append(sum(name.startswith("irrelevance") for name in names) / len(names))
    assert env.chance_score == max(shares)
    assert (Bfcl(kinds="irrelevance").chance_score, Bfcl(kinds="multi_turn_base").chance_score) == (1.0, 0.0)


# ---- single turn --------------------------------------------------------------------------------------------------

PLAY: tuple[JsonObject, JsonObject] = {"artist": "Taylor Swift", "duration": 20}, {"artist": "Maroon 5", "duration": 15}


def play_songs(*arguments: JsonObject) -> str:
    return "\n".join(tool_call_action("spotify_play", **item) for item in arguments)


@NEEDS_BFCL
@pytest.mark.parametrize(
    "action, solved, part",
    [
        (play_songs(*PLAY), 1.0, 1.0),
        (play_songs(*PLAY[::-1]), 1.0, 1.0),
        # One of two calls: S_max = 1 + 2 * 3 = 7, names 1/2: S = 1/2 + 1 + 2 = 7/2; (1 + 6 * 1/2) / 7 = 4/7.
        (play_songs(PLAY[0]), 0.0, 4 / 7),
        # A wrong value: S = 1 + 2 + 3 = 6; (1 + 6 * 6/7) / 7 = 43/49.
        (play_songs(PLAY[0], {**PLAY[1], "duration": 16}), 0.0, 43 / 49),
        # Twice the same: the second pairs with the other call, of which nothing is right but the argument names.
        (play_songs(PLAY[0], PLAY[0]), 0.0, (1 + 6 * 5 / 7) / 7),
        # A call of a function that is not there: names 2/3; S = 2/3 + 2 + 4 = 20/3; (1 + 6 * 20/21) / 7 = 47/49.
        (play_songs(*PLAY) + tool_call_action("stop"), 0.0, 47 / 49),
        (play_songs(*PLAY) + "<tool_call>{</tool_call>", 0.0, 6 / 7),
        ("I play them now.", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_parallel_calls_are_graded_by_hand(action: str, solved: float, part: float) -> None:
    for reward, value in (("exact", solved), ("toolrl", part)):
        episode = episode_of(Bfcl(kinds="parallel", reward=reward), "parallel_0", action)
        assert (episode.ending, len(episode.turns)) == (Ending.TERMINATED, 1)
        assert episode.reward == pytest.approx(value, abs=1e-12)
        paid = episode.turns[0].reward
        assert isinstance(paid, Scored)
        assert paid.components["solved"] == solved


@NEEDS_BFCL
def test_without_a_fitting_function_any_call_is_wrong() -> None:
    env = Bfcl(kinds="irrelevance")
    name = "determine_body_mass_index"
    rewards = [
        episode_of(env, "irrelevance_0", action).reward
        for action in ("No function fits.", tool_call_action(name, weight=10.0, height=5.0), tool_call_action("area"))
    ]
    assert rewards == [1.0, 0.0, 0.0]


@NEEDS_BFCL
@pytest.mark.parametrize("reward", ["exact", "toolrl"])
def test_where_no_call_is_right_words_are_paid_and_garbage_is_not(reward: str) -> None:
    env = Bfcl(kinds="irrelevance", reward=reward)
    words = (
        "No function fits.",
        "I need the sides.",
        "没有合适的函数",
        "Нет подходящей функции",
        "- **None** fits: no area.",
    )
    garbage = (
        "",
        "x",
        "aaaa",
        "no no",
        "((((((",
        "{}" * 50,
        "12345",
        "-" * 100,
        "determine_body_mass_index(weight=10, height=5)",
    )
    assert [episode_of(env, "irrelevance_0", text).reward for text in words] == [1.0] * len(words)
    assert [episode_of(env, "irrelevance_0", text).reward for text in garbage] == [0.0] * len(garbage)


@NEEDS_BFCL
def test_functions_are_tools_without_dots_and_with_json_types() -> None:
    env = Bfcl(kinds="parallel_multiple")
    first = episode_of(env, "parallel_multiple_0", "").first
    specs = {spec.name: spec.parameters for spec in first.tools}
    assert list(specs) == ["math_toolkit_sum_of_multiples", "math_toolkit_product_of_primes"]
    properties: Any = specs["math_toolkit_sum_of_multiples"]["properties"]
    assert properties["multiples"]["type"] == "array"
    assert specs["math_toolkit_sum_of_multiples"]["type"] == "object"


# ---- a conversation -----------------------------------------------------------------------------------------------


@NEEDS_BFCL
def test_a_function_that_is_added_can_be_called_from_then_on() -> None:
    env = Bfcl(kinds="multi_turn_miss_func")
    turns = golden_calls("multi_turn_miss_func", "multi_turn_miss_func_0")
    sort = tool_call_action("sort", file_name="final_report.pdf")
    script = [*actions_of([[*calls] for calls in turns[:2]]), sort, "There is nothing to sort with.", sort, "Done."]
    episode = episode_of(env, "multi_turn_miss_func_0", *script)
    assert "sort" not in {spec.name for spec in episode.first.tools}
    *_, refused, added, ran, following = [turn.observation for turn in episode.turns]
    assert refused.startswith("There is no tool 'sort'.")
    assert added.startswith('There are more functions now. Can you go on with them?\n{"name": "sort"')
    assert json.loads(ran) == {
        "sorted_content": "Year2024 This is the final report content including budget analysis and other sections."
    }
    assert following.startswith("Move 'previous_report.pdf'")
    assert episode.ending is None


@NEEDS_BFCL
def test_what_was_done_in_vain_shows_after_the_next_turn() -> None:
    name = "multi_turn_miss_param_0"
    golden = [[*calls] for calls in golden_calls("multi_turn_miss_param", name)]
    in_vain = [calls or [ToolCall(name="touch", arguments={"file_name": "guess"})] for calls in golden]
    looked = [calls or [ToolCall(name="pwd")] for calls in golden]
    endings = []
    for turns in (golden, looked, in_vain):
        env = Bfcl(kinds="multi_turn_miss_param")
        episode = episode_of(env, name, *actions_of(turns))
        endings.append((episode.reward, episode.turns[-1].observation))
    assert endings == [(1.0, "All as asked."), (1.0, "All as asked."), (0.0, "That is not what was asked for.")]


@NEEDS_BFCL
def test_toolrl_pays_the_mean_of_the_turns() -> None:
    name = "multi_turn_base_0"
    golden = [[*calls] for calls in golden_calls("multi_turn_base", name)]
    # The third of four turns is left out: it has the score 0, the others 1. Sorting shows a file and changes nothing.
    script = actions_of([*golden[:2], [], golden[3]])
    episode = episode_of(Bfcl(kinds="multi_turn_base", reward="toolrl"), name, *script)
    paid = episode.turns[-1].reward
    assert paid == Scored(value=3 / 4, components={"solved": 0.0, "turns": 3 / 4})


@NEEDS_BFCL
def test_the_user_leaves_after_too_many_messages_with_calls() -> None:
    episode = episode_of(
        Bfcl(kinds="multi_turn_base"), "multi_turn_base_0", *[tool_call_action("pwd")] * (MAX_STEPS + 1)
    )
    assert [turn.ending for turn in episode.turns] == [None] * MAX_STEPS + [Ending.TERMINATED]
    assert episode.reward == 0.0


@NEEDS_BFCL
def test_forks_part_ways_and_leave_the_right_run_alone() -> None:
    env = Bfcl(kinds="multi_turn_base")
    name = "multi_turn_base_0"
    episode_of(env, name, tool_call_action("cd", folder="document"))
    golden = golden_run("multi_turn_base", name)
    before = golden.start.fork().run("find", {"path": "."})
    twin = env.fork()
    apis, others = env.state.apis, twin.state.apis
    assert apis is not None
    assert others is not None
    assert not apis.differs_from(others)
    env.step(tool_call_action("mkdir", dir_name="temp"))
    assert apis is env.state.apis
    assert apis.differs_from(others)
    twin.step(tool_call_action("mkdir", dir_name="temp"))
    assert not apis.differs_from(others)
    assert [env_.step(tool_call_action("ls")).observation for env_ in (env, twin)] == [
        '{"current_directory_content": ["final_report.pdf", "previous_report.pdf", "temp"]}'
    ] * 2
    assert golden.start.fork().run("find", {"path": "."}) == before


# ---- refusals --------------------------------------------------------------------------------------------------------


@NEEDS_BFCL
@pytest.mark.parametrize(
    "row, told",
    [
        (
            '{"id": "irrelevance_0", "function": []}',
            r"field 'question' must hold a list, got nothing \(row 1 of BFCL_v4_irr",
        ),
        (
            '{"id": "irrelevance_0", "question": [[{"role": "user"}]], "function": []}',
            "field 'content' must hold a str",
        ),
        ('{"id": 3, "question": []}', "field 'id' must hold a str, got 3"),
        (
            '{"id": "x", "question": [], "function": [{"name": "f"}]}',
            "field 'description' must hold a str, got nothing",
        ),
        ('{"id": "x"', r"row must be JSON, got .* \(row 1 of BFCL_v4_irrelevance.json\); install bfcl-eval again"),
        ("[]", r"row must be an object, got \[\]"),
    ],
)
def test_a_row_that_lacks_something_is_named(tmp_path: Path, row: str, told: str) -> None:
    (tmp_path / "BFCL_v4_irrelevance.json").write_text(f"{row}\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=told):
        source.read_questions(tmp_path, "irrelevance")
    with pytest.raises(InvalidInput, match=r"must have the file, got BFCL_v4_multiple.json"):
        source.read_questions(tmp_path, "multiple")


def test_missing_wheel_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "NEEDED", ("no_such_module",))
    with pytest.raises(InvalidInput, match=r"pip install 'envgym\[tools\]', then pip install --no-deps bfcl-eval\."):
        envgym.make("tools/bfcl-v0")
    assert "tools/bfcl-v0" in envgym.list_ids()
