"""Searches at test time against chains at an equal counted budget: what majorities, likelihoods and learned values add.

Run: python benchmarks/search_eval.py run      the declared study; continues an interrupted one
     python benchmarks/search_eval.py pilot    train tasks with the pilot's seed, and the minimum detectable effect
     python benchmarks/search_eval.py report   docs/results/search_eval.md
Without a word it prints one JSON line about what is there.

What is compared was declared in examples/search_eval/. Everything is written under --out, by the commands of the page.
"""

import argparse
import json
from pathlib import Path

from benchmarks._search_eval_arms import CHAIN, Bench, Declaration, planned_effect
from benchmarks._search_eval_report import write_report
from benchmarks._studies import ROOT, check_declared, read_declaration

PAGE = ROOT / "docs" / "results" / "search_eval.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "pilot", "report"), help="default: one JSON line")
    parser.add_argument("--out", type=Path, default=Path("runs/search_eval"))
    args = parser.parse_args()
    bench = Bench(read_declaration(Declaration, "search_eval"), args.out)
    if args.action == "run":
        check_declared({"held-out tasks": bench.declared.minimum_detectable_effect})
        bench.train()
        bench.evaluate(list(bench.arms), is_pilot=False)
    elif args.action == "pilot":
        bench.train()
        bench.evaluate([CHAIN, *bench.declared.pilot.arms], is_pilot=True)
        print("minimum_detectable_effect:", round(planned_effect(bench), 4))
    elif args.action == "report":
        write_report(bench, PAGE)
    else:
        done = [name for name in bench.arms if bench.record(name, is_pilot=False) is not None]
        differences = {name: bench.compared(name, is_pilot=False).difference.value for name in done if CHAIN in done}
        print(json.dumps({"benchmark": "search_eval", "differences_to_chain": differences}))


if __name__ == "__main__":
    main()
