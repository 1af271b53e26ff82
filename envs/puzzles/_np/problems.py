"""The table of problems."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.envs.puzzles._np.bin_packing import BIN_PACKING
from envgym.envs.puzzles._np.clique import CLIQUE
from envgym.envs.puzzles._np.coloring import COLORING
from envgym.envs.puzzles._np.knapsack import KNAPSACK
from envgym.envs.puzzles._np.makespan import MAKESPAN
from envgym.envs.puzzles._np.max_cut import MAX_CUT
from envgym.envs.puzzles._np.max_sat import MAX_SAT
from envgym.envs.puzzles._np.problem import HardProblem
from envgym.envs.puzzles._np.set_cover import SET_COVER
from envgym.envs.puzzles._np.subset_sum import SUBSET_SUM
from envgym.envs.puzzles._np.vertex_cover import VERTEX_COVER

PROBLEMS: Mapping[str, HardProblem] = MappingProxyType(
    {
        "bin_packing": BIN_PACKING,
        "clique": CLIQUE,
        "coloring": COLORING,
        "knapsack": KNAPSACK,
        "makespan": MAKESPAN,
        "max_cut": MAX_CUT,
        "max_sat": MAX_SAT,
        "set_cover": SET_COVER,
        "subset_sum": SUBSET_SUM,
        "vertex_cover": VERTEX_COVER,
    }
)
SIZES = ("easy", "medium", "hard")
"""Names of the sizes that each problem has."""
MAX_ATTEMPTS = 5
"""So many answers an episode may have; what they earn by chance is measured for each number."""
