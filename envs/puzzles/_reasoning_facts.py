"""What was measured about the generators of reasoning-gym 0.1.25 with their default settings.

Method: 100 items each (25 of futoshiki and knight_swap) were answered with the two most frequent solutions, with True,
0, 1, (), nothing, and the question itself. The best mean is an estimate of what an agent earns that does not read.
"""

from collections.abc import Mapping
from types import MappingProxyType

WITHOUT_SOLUTION = frozenset({"boxnet", "rush_hour"})
"""Neither answer nor example: only the scorer knows."""
CHANCE_ELSEWHERE = 0.05
"""No data set beside those below gave more."""
CHANCE: Mapping[str, float] = MappingProxyType(
    {
        "acre": 0.43,
        "aiw": 0.21,
        "binary_alternation": 0.23,
        "calendar_arithmetic": 0.11,
        "circuit_logic": 0.71,
        "coin_flip": 0.93,
        "color_cube_rotation": 0.11,
        "count_bits": 0.15,
        "course_schedule": 0.51,
        "family_relationships": 0.2,
        "game_of_life": 0.11,
        "game_of_life_halting": 1.0,
        "gcd": 0.36,
        "graph_color": 0.07,
        "isomorphic_strings": 0.51,
        "jugs": 0.09,
        "knight_swap": 0.16,
        "largest_island": 0.14,
        "letter_counting": 0.29,
        "list_functions": 0.07,
        "mahjong_puzzle": 0.39,
        "maze": 0.27,
        "n_queens": 0.08,
        "number_sequence": 0.14,
        "polynomial_equations": 0.24,
        "power_function": 0.09,
        "propositional_logic": 0.86,
        "puzzle24": 1.0,
        "ransom_note": 0.59,
        "rectangle_count": 0.14,
        "rotten_oranges": 0.35,
        "self_reference": 0.3,
        "shortest_path": 0.35,
        "syllogism": 0.72,
        "zebra_puzzles": 0.28,
    }
)
"""Share of the items that one answer solves."""
CHANCE_PARTIAL: Mapping[str, float] = MappingProxyType(
    {
        **CHANCE,
        "arc_agi": 0.06,
        "binary_alternation": 0.24,
        "calendar_arithmetic": 0.13,
        "color_cube_rotation": 0.12,
        "countdown": 0.06,
        "fraction_simplification": 0.06,
        "futoshiki": 0.07,
        "game_of_life": 0.97,
        "graph_color": 0.08,
        "jugs": 0.1,
        "mini_sudoku": 0.26,
        "palindrome_generation": 0.08,
        "polynomial_equations": 0.34,
        "power_function": 0.1,
        "propositional_logic": 0.87,
        "rearc": 0.07,
        "rectangle_count": 0.46,
        "rotate_matrix": 0.1,
        "sentence_reordering": 0.08,
        "simple_equations": 0.08,
        "spell_backward": 0.08,
        "sudoku": 0.14,
        "time_intervals": 0.44,
        "tower_of_hanoi": 0.07,
        "tsumego": 0.09,
    }
)
"""Mean score that one answer gets."""
