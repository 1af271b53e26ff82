"""Arguments outside their range are refused in one sentence that names the argument and the rule."""

from typing import Any

import pytest

import envgym
from envgym.errors import InvalidInput
from tests.envs.requirements import require_packages
from tests.support.lanes import marks_of

REFUSED: list[tuple[str, dict[str, Any], str]] = [  # the envs' own arguments
    ("code/repo-v0", {"attempts": 0}, "attempts must be 1 to 10, got 0"),
    ("code/repo-v0", {"levels": 4}, "levels must be 1, 2 or 3, got 4"),
    ("code/repo-v0", {"levels": ()}, "levels must be 1, 2 or 3, got \\(\\)"),
    ("code/repo-v0", {"kinds": "chore"}, "kinds must be bug or feature, got chore"),
    ("code/repo-v0", {"guidance": 4}, "guidance must be 0 to 3, got 4"),
    ("code/sql-v0", {"levels": 4}, "levels must be 1, 2 or 3, got 4"),
    ("code/sql-v0", {"rows_shown": 0}, "rows_shown must be 1 to 200, got 0"),
    ("code/sql-v0", {"seconds": 0}, "seconds must lie in"),
    ("code/sql-v0", {"held_out": "clinik"}, "did you mean clinic"),
    ("code/sql-v0", {"databases": "spider"}, "must be generated, factbook, or a folder that comes with a source"),
    ("code/sql-v0", {"source": "dev.json"}, "source must come with a folder of databases"),
    ("code/sql-v0", {"databases": ".", "source": "no.json"}, "source must be a JSON list of questions"),
    ("math/instructions-v0", {"kinds": "bulets"}, "kind must be a known name, got 'bulets' .*did you mean bullets"),
    ("math/instructions-v0", {"kinds": ()}, "kind must be a known name, got ''"),
    ("math/instructions-v0", {"kinds": "json"}, "constraints must be at most the number of kinds, 1, got 3"),
    ("math/instructions-v0", {"reward": "none"}, "reward must be a known name, got 'none' .*choose one of: all, share"),
    ("math/instructions-v0", {"constraints": 6}, "constraints must be a whole number from 1 to 5, got 6"),
    ("math/instructions-v0", {"attempts": 0}, "attempts must be a whole number from 1 to 3, got 0"),
    ("math/metamath-v0", {"mode": "tactics"}, "mode must be a known name, got 'tactics'"),
    ("math/metamath-v0", {"families": "order"}, "family must be a known name, got 'order'"),
    ("math/metamath-v0", {"levels": 4}, "levels must be 1, 2 or 3, got 4"),
    ("math/metamath-v0", {"levels": ()}, "levels must be 1, 2 or 3, got \\(\\)"),
    ("math/metamath-v0", {"attempts": 0}, "attempts must be a whole number from 1 to 10, got 0"),
    ("math/metamath-v0", {"held_out": ("axioms", "inferences", "theorems")}, "families must leave some to train on"),
    ("math/proofs-v0", {"mode": "term"}, "mode must be a known name"),
    ("math/proofs-v0", {"families": "geometry"}, "family must be a known name"),
    ("math/proofs-v0", {"levels": 4}, "levels must be 1, 2 or 3, got 4"),
    ("math/proofs-v0", {"families": "lists", "held_out": "lists"}, "families must leave some to train on"),
    ("math/proofs-v0", {"tactic_s": 0.0}, "tactic_s must be seconds above 0"),
    ("math/proofs-v0", {"attempts": 0}, "attempts must be a whole number from 1 to 10"),
    ("puzzles/frozen_lake-v0", {"size": 2}, "size must be a whole number from 3 to 10, got 2"),
    ("puzzles/frozen_lake-v0", {"holes": 5}, "holes must be a whole number from 1 to 4, got 5"),
    ("puzzles/frozen_lake-v0", {"slips": 1, "holes": 3}, "holes must be a whole number from 1 to 2, got 3"),
    ("puzzles/frozen_lake-v0", {"slips": -1}, "slips must be a whole number from 0 to 5, got -1"),
    ("puzzles/guess_number-v0", {"size": 1}, "size must be 2 to 1,000,000, got 1"),
    ("puzzles/guess_number-v0", {"slack": -1}, "slack must be at least 0"),
    ("puzzles/household-v0", {"rooms": 4}, "rooms must be a whole number from 1 to 3, got 4"),
    ("puzzles/household-v0", {"distractors": 13}, "distractors must be"),
    ("puzzles/household-v0", {"kinds": ["lift"]}, "lift"),
    ("puzzles/household-v0", {"kinds": []}, "kinds must name at least one"),
    ("puzzles/household-v0", {"test_layouts": "new"}, "new"),
    ("puzzles/knights_knaves-v0", {"persons": 6}, "persons must be a whole number from 3 to 5, got 6"),
    ("puzzles/mastermind-v0", {"length": 7}, "length must be a whole number from 2 to 6, got 7"),
    ("puzzles/mastermind-v0", {"length": 6, "colors": 10}, "codes must be at most 100,000, got 1000000"),
    ("puzzles/mastermind-v0", {"length": 5, "colors": 4, "repeats": False}, "colors must be .* from 5 to 10, got 4"),
    ("puzzles/mastermind-v0", {"guesses": 0}, "guesses must be a whole number from 1 to 20, got 0"),
    ("puzzles/minesweeper-v0", {"size": 4}, "size must be a whole number from 5 to 12"),
    ("puzzles/minesweeper-v0", {"mines": 8}, "mines must be a whole number from 6 to 7"),
    ("puzzles/np-v0", {"kinds": "knapsak"}, "kind must be a known name, got 'knapsak' .*did you mean knapsack"),
    ("puzzles/np-v0", {"kinds": ()}, "kind must be a known name, got ''"),
    ("puzzles/np-v0", {"size": "huge"}, "size must be a known name, got 'huge' .*choose one of: easy, hard, medium"),
    ("puzzles/np-v0", {"attempts": 6}, "attempts must be a whole number from 1 to 5, got 6"),
    ("puzzles/sokoban-v0", {"boxes": 4}, "boxes must be a whole number from 1 to 3, got 4"),
    ("puzzles/sokoban-v0", {"boxes": 3, "size": 6}, "size must be"),
    ("puzzles/sokoban-v0", {"boxes": 1, "size": 5}, "size must be"),
    ("puzzles/sudoku-v0", {"size": 5}, "size must be 4, 6 or 9, got 5"),
    ("puzzles/sudoku-v0", {"blanks": 60}, "blanks must be a whole number from 10 to 50"),
    ("puzzles/tsp-v0", {"cities": 11}, "cities must be a whole number from 6 to 10, got 11"),
    ("puzzles/tsp-v0", {"tours": 6}, "tours must be a whole number"),
    ("puzzles/wordle-v0", {"guesses": 13}, "guesses must be a whole number from 1 to 12, got 13"),
    ("tools/bfcl-v0", {"kinds": "paralel"}, "did you mean parallel"),
    ("tools/bfcl-v0", {"kinds": []}, "kind must be a known name, got ''"),
    ("tools/bfcl-v0", {"kinds": ["simple_python", "simple_java"]}, "got 'simple_java'"),
    ("tools/bfcl-v0", {"reward": "partial"}, "choose one of: exact, toolrl"),
    ("tools/office-v0", {"level": 6}, "level must be a whole number from 1 to 5 or None, got 6"),
    ("tools/tau2-v0", {"domain": "airlin"}, "did you mean airline"),
    ("tools/tau2-v0", {"domain": 5}, "domain must be a text, got 5"),
    ("web/miniwob-v0", {"pages": "click-buton"}, "click-button"),
    ("web/miniwob-v0", {"pages": 5}, "pages must be a text or a list, got 5"),
    ("web/miniwob-v0", {"input": "touch"}, "dom"),
    ("web/miniwob-v0", {"limit_s": "abc"}, "limit_s must be a number, got 'abc'"),
    ("web/miniwob-v0", {"limit_s": -1}, "limit_s must be seconds above 0, got -1"),
    ("web/shop-v0", {"attributes": 6}, "attributes must be a whole number from 0 to 5, got 6"),
    ("web/shop-v0", {"options": -1}, "options must be a whole number from 0 to 2, got -1"),
    ("web/shop-v0", {"items": 4}, "items must be a whole number from 1 to 3, got 4"),
    ("web/shop-v0", {"products": 10}, "products must be a whole number from 1000 to 5000, got 10"),
    ("web/shop-v0", {"store": True}, "store must be a whole number, got True"),
]


@pytest.mark.parametrize(
    "env_id, kwargs, message", [pytest.param(*row, marks=marks_of(row[0]), id=f"{row[0]} {row[1]}") for row in REFUSED]
)
def test_arguments_outside_their_range_are_refused(env_id: str, kwargs: dict[str, Any], message: str) -> None:
    require_packages(env_id)
    with pytest.raises(InvalidInput, match=message):
        envgym.make(env_id, **kwargs)
