"""The table of problems."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.envs.puzzles._np.bin_packing import BinPacking
from envgym.envs.puzzles._np.clique import Clique
from envgym.envs.puzzles._np.coloring import Coloring
from envgym.envs.puzzles._np.knapsack import Knapsack
from envgym.envs.puzzles._np.makespan import Makespan
from envgym.envs.puzzles._np.max_cut import MaxCut
from envgym.envs.puzzles._np.max_sat import MaxSat
from envgym.envs.puzzles._np.problem import HardProblem
from envgym.envs.puzzles._np.set_cover import SetCover
from envgym.envs.puzzles._np.subset_sum import SubsetSum
from envgym.envs.puzzles._np.vertex_cover import VertexCover

PROBLEMS: Mapping[str, HardProblem] = MappingProxyType(
    {
        "bin_packing": BinPacking(),
        "clique": Clique(),
        "coloring": Coloring(),
        "knapsack": Knapsack(),
        "makespan": Makespan(),
        "max_cut": MaxCut(),
        "max_sat": MaxSat(),
        "set_cover": SetCover(),
        "subset_sum": SubsetSum(),
        "vertex_cover": VertexCover(),
    }
)
SIZES = ("easy", "medium", "hard")
"""Names of the sizes that each problem has."""
MAX_ATTEMPTS = 5
"""So many answers an episode may have; what they earn by chance is measured for each number."""
