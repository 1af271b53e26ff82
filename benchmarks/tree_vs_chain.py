"""Trees and turns against chains: `tree_grpo` and `turn_grpo` against `grpo` at equal counted tokens, eight seeds.

Run: python benchmarks/tree_vs_chain.py run [--jobs 2]     the declared seeds; continues an interrupted study
     python benchmarks/tree_vs_chain.py pilot [--jobs 2]   the pilot seeds, and the minimum detectable effect
     python benchmarks/tree_vs_chain.py report             docs/results/tree_vs_chain.md and its figure
Without a word it prints one JSON line about the cells that are there.

What is compared was declared in examples/tree_vs_chain/. Each cell (game, seed, recipe) is a JSON file under --out.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks._studies import ROOT, check_declared, read_declaration, t_interval
from benchmarks._tree_vs_chain_cells import CellPaths, Declaration, run_seed
from benchmarks._tree_vs_chain_report import differences, planned_effect, results, write_report

PAGE = ROOT / "docs" / "results" / "tree_vs_chain.md"


def run(declared: Declaration, root: Path, games: Sequence[str], seeds: Sequence[int], *, jobs: int) -> None:
    """Make the missing cells, one seed of all games after the other."""
    cells = [CellPaths(game=game, seed=seed, root=root) for seed in seeds for game in games]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for _ in pool.map(partial(run_seed, declared), cells):
            pass


def summary(root: Path) -> dict[str, dict[str, object]]:
    """Return for each game its whole seeds and the mean paired differences."""
    declared, summaries = read_declaration(Declaration, "tree_vs_chain"), dict[str, dict[str, object]]()
    for game in declared.games:
        of = results(root, declared, game, declared.seeds)
        summaries[game] = {"seeds": of.seeds}
        if of.seeds:
            summaries[game] |= {arm: t_interval(differences(of, arm, declared.baseline)).value for arm in declared.arms}
    return summaries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "pilot", "report"), help="default: one JSON line")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--games", nargs="+", default=list(read_declaration(Declaration, "tree_vs_chain").games))
    parser.add_argument("--out", type=Path, default=Path("runs/tree_vs_chain"))
    args = parser.parse_args()
    declared, root = read_declaration(Declaration, "tree_vs_chain"), args.out.resolve()
    if args.action == "run":
        check_declared(declared.minimum_detectable_effects(args.games))
        run(declared, root, args.games, declared.seeds, jobs=args.jobs)
    elif args.action == "pilot":
        run(declared, root, args.games, declared.pilot_seeds, jobs=args.jobs)
        for game in args.games:
            print(game, planned_effect(results(root, declared, game, declared.pilot_seeds), declared))
    elif args.action == "report":
        write_report(root, declared, PAGE)
    else:
        print(json.dumps({"benchmark": "tree_vs_chain", "games": summary(root)}))


if __name__ == "__main__":
    main()
