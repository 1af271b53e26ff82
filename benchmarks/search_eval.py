"""Which search at evaluation? Success over counted compute of best-of-n, beam search and mcts, led by a learned value.

Run: python -m benchmarks.search_eval pilot    train tasks with the pilot's seed: what is to be declared
     python -m benchmarks.search_eval run      the declared study; continues an interrupted one
     python -m benchmarks.search_eval report   docs/results/search_eval.md, its figure and its data
Without a word it prints one JSON line about what is there. What is compared was declared in examples/search_eval/.
Everything is written under --out, by the commands of the page. `--games` chooses among those that are declared.
"""

import argparse
import json
from pathlib import Path

from benchmarks._search_eval_cells import Bench, Cell, Declaration, chain_tokens
from benchmarks._search_eval_report import planned_effect, write_report
from benchmarks._studies import ROOT, check_declared, read_declaration

PAGE = ROOT / "docs" / "results" / "search_eval.md"


def pilot(bench: Bench, game: str) -> None:
    """Make the pilot of a game, and print what it declares: first the tokens of an episode, then the effect."""
    bench.train(game)
    chain, *searches = bench.cells(game, is_pilot=True)
    bench.evaluate(chain)
    print(game, "chain_tokens:", chain_tokens(bench, game), f"explained variance: {bench.explained(game):.3f}")
    if bench.declared.games[game].chain_tokens is not None:
        for cell in searches:
            bench.evaluate(cell)
        print(game, "minimum_detectable_effect:", round(planned_effect(bench, game), 4))


def main() -> None:
    """Make runs, or tell of them."""
    declared = read_declaration(Declaration, "search_eval")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "pilot", "report"), help="default: one JSON line")
    parser.add_argument("--games", nargs="+", choices=list(declared.games), default=list(declared.games))
    parser.add_argument("--out", type=Path, default=Path("runs/search_eval"))
    args = parser.parse_args()
    bench = Bench(declared, args.out)
    if args.action == "pilot":
        for game in args.games:
            pilot(bench, game)
    elif args.action == "run":
        check_declared({game: declared.games[game].minimum_detectable_effect for game in args.games})
        for game in args.games:
            bench.train(game)
            for cell in bench.cells(game, is_pilot=False):
                bench.evaluate(cell)
    elif args.action == "report":
        write_report(bench, PAGE)
    else:
        most = declared.factors[-1]
        made = [(game, arm) for game in declared.games for arm in declared.arms]
        done = {
            f"{game}/{arm}": len(record.rewards)
            for game, arm in made
            if (record := bench.record(Cell(game=game, arm=arm, factor=most))) is not None
        }
        print(json.dumps({"benchmark": "search_eval", "tasks_at_the_largest_budget": done}))


if __name__ == "__main__":
    main()
