"""When do trees beat chains? Arms of search and credit at equal generated tokens.

Run: python -m benchmarks.trees pilot [--jobs 2]   the pilot seeds: learning rates, and the minimum detectable effect
     python -m benchmarks.trees run [--jobs 2]     the declared seeds; continues an interrupted study
     python -m benchmarks.trees report             docs/results/trees.md, its figure and its data
Without a word it prints one JSON line about the runs that are there. What is compared was declared in
examples/tree_study/ (a task with early luck and without), or examples/tree_study_factbook/ (SmolLM2, multi-hop
questions): --study. Each run is a directory under --out. A report without runs is made from the data beside the page.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks._studies import ROOT, check_declared, read_declaration
from benchmarks._trees_report import best_rates, planned_effect, primary_test, read_results, write_report
from benchmarks._trees_runs import Declaration, TreeRun
from envgym.errors import EnvgymError

PAGES = {"tree_study": "trees.md", "tree_study_factbook": "trees_factbook.md"}
"""Study -> its page of docs/results/."""


def declared_runs(declared: Declaration, root: Path) -> list[TreeRun]:
    """Return the runs of the declared seeds, a seed after the other."""
    return [
        TreeRun(root=root, seed=seed, cell=cell, arm=arm, rate=declared.rate(arm, cell))
        for seed in declared.seeds
        for cell in declared.cells
        for arm in declared.arms
    ]


def pilot_runs(declared: Declaration, root: Path) -> list[TreeRun]:
    """Return the runs of the pilot seeds, with every rate."""
    return [
        TreeRun(root=root, seed=seed, cell=cell, arm=arm, rate=rate)
        for seed in declared.pilot_seeds
        for cell in declared.cells
        for arm in declared.arms
        for rate in declared.rates
    ]


def make(declared: Declaration, runs: Sequence[TreeRun], *, jobs: int) -> list[str]:
    """Make the missing runs, warm starts before the others; return what failed."""
    starts = [TreeRun(root=runs[0].root, seed=seed) for seed in dict.fromkeys(run.seed for run in runs)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        failed = [error for error in pool.map(partial(_made, declared), starts) if error]
        return failed or [error for error in pool.map(partial(_made, declared), runs) if error]


def _made(declared: Declaration, run: TreeRun) -> str:
    try:
        run.make(declared)
    except EnvgymError as error:
        return str(error)
    return ""


def main() -> int:
    """Make runs, or tell of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("pilot", "run", "report"), help="default: one JSON line")
    parser.add_argument("--study", choices=PAGES, default="tree_study", help="default: tree_study")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="default: runs/STUDY")
    args = parser.parse_args()
    declared, failed = read_declaration(Declaration, args.study), list[str]()
    root = (args.out or Path("runs") / args.study).resolve()
    if args.action == "pilot":
        failed = make(declared, pilot_runs(declared, root), jobs=args.jobs)
        if not failed:
            print(json.dumps(best_rates(declared, root), indent=1))
            print("minimum_detectable_effect:", round(planned_effect(declared, root), 4))
    elif args.action == "run":
        check_declared({"trees": declared.minimum_detectable_effect})
        failed = make(declared, declared_runs(declared, root), jobs=args.jobs)
    elif args.action == "report":
        text = (ROOT / "examples" / args.study / "page.md").read_text(encoding="utf-8")
        write_report(declared, declared_runs(declared, root), ROOT / "docs" / "results" / PAGES[args.study], text)
    elif any(not arm.rates for arm in declared.arms.values()):
        print(json.dumps({"benchmark": "trees", "study": args.study, "seeds": 0}))
    else:
        results = read_results(declared, declared_runs(declared, root))
        found = primary_test(results).mean.value if len(results.seeds) > 1 else None
        print(json.dumps({"benchmark": "trees", "study": args.study, "seeds": len(results.seeds), "primary": found}))
    print(*(f"failed: {name}" for name in failed), sep="\n", end="\n" if failed else "", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
