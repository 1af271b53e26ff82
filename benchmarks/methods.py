"""Methods at equal counted tokens: every arm of examples/methods/declaration.yaml against its baseline, on two envs.

Run: python benchmarks/methods.py run [--jobs 2]     the declared seeds; continues an interrupted study
     python benchmarks/methods.py pilot [--jobs 2]   the pilot seeds, and the minimum detectable effect
     python benchmarks/methods.py report             docs/results/methods.md and its figure
Without a word it prints one JSON line about the runs that are there. `--games` and `--arms` choose among what is
declared; a report needs all arms. Each arm of an env and seed is a run directory under --out.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks._methods_cells import Cells, Declaration
from benchmarks._methods_report import differences, planned_effect, read, write_report
from benchmarks._studies import ROOT, check_declared, read_declaration, t_interval

PAGE = ROOT / "docs" / "results" / "methods.md"


def run(declared: Declaration, root: Path, games: Sequence[str], seeds: Sequence[int], *, jobs: int) -> list[str]:
    """Make the missing runs, one seed of all envs after the other; return the arms that failed."""
    cells = [Cells(declared=declared, game=game, seed=seed, root=root) for seed in seeds for game in games]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return [failed for of_cells in pool.map(Cells.make, cells) for failed in of_cells]


def summary(declared: Declaration, root: Path) -> dict[str, dict[str, object]]:
    """Return for each env its whole seeds and the mean paired differences."""
    summaries: dict[str, dict[str, object]] = {}
    for game in declared.games:
        of = read(declared, game, declared.seeds, root)
        summaries[game] = {"seeds": of.seeds}
        if of.seeds:
            summaries[game] |= {arm: t_interval(values).value for arm, values in differences(of).items()}
    return summaries


def main() -> int:
    declared = read_declaration(Declaration, "methods")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "pilot", "report"), help="default: one JSON line")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--games", nargs="+", default=list(declared.games), choices=list(declared.games))
    parser.add_argument("--arms", nargs="+", default=list(declared.arms), choices=list(declared.arms))
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    args = parser.parse_args()
    root = args.out.resolve()
    chosen = declared.model_copy(update={"arms": {arm: declared.arms[arm] for arm in args.arms}})
    failed: list[str] = []
    if args.action == "run":
        check_declared(declared.minimum_detectable_effects(args.games))
        failed = run(chosen, root, args.games, declared.seeds, jobs=args.jobs)
    elif args.action == "pilot":
        failed = run(chosen, root, args.games, declared.pilot_seeds, jobs=args.jobs)
        for game in args.games:
            print(game, planned_effect(read(chosen, game, declared.pilot_seeds, root), declared))
    elif args.action == "report":
        write_report(declared, root, PAGE)
    else:
        print(json.dumps({"benchmark": "methods", "games": summary(declared, root)}))
    print(*(f"failed: {name}" for name in failed), sep="\n", end="\n" if failed else "", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
