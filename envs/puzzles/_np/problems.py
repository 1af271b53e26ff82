"""The table of problems."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.envs.puzzles._np.graph_problems import Clique, Coloring, MaxCut, VertexCover
from envgym.envs.puzzles._np.number_problems import BinPacking, Knapsack, Makespan, SubsetSum
from envgym.envs.puzzles._np.problem import HardProblem
from envgym.envs.puzzles._np.set_problems import MaxSat, SetCover

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
