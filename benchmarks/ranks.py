"""Balance of search trees over learner ranks: the slowest rank over the ideal, of both plans. Writes one JSON line."""

import argparse
import json
import random
from collections.abc import Sequence
from statistics import mean

from envgym.trainer.batch.balance import Shares, TokenCost, balance_rows, cut_shares, group_shares

COST = TokenCost(base=6 * 1_543_714_304, pair=12 * 28 * 1536)
"""Of a model of 1.5B parameters, 28 layers, width 1536."""


def tree_rows(rng: random.Random, num_groups: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the rows of trees of very different sizes, and the group of each.

    A group has a prompt of 200 to 600 tokens and 4 turns of 20 to 400, of which every one branches in two or three with
    probability 0.4, and 4 to 8 samples of its first turn.
    """
    rows: list[tuple[int, ...]] = []
    groups: list[int] = []

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(50_000) for _ in range(rng.randint(low, high)))

    def grow(path: tuple[int, ...], turns: int, group: int) -> None:
        if not turns:
            rows.append(path)
            groups.append(group)
            return
        for _ in range(rng.choice((2, 3)) if rng.random() < 0.4 else 1):
            grow((*path, *tokens(20, 400)), turns - 1, group)

    for group in range(num_groups):
        prompt = tokens(200, 600)
        for _ in range(rng.randint(4, 8)):
            grow(prompt, 4, group)
    return rows, groups


def flat_shares(rows: Sequence[tuple[int, ...]], groups: Sequence[int], num_ranks: int) -> float:
    """Return the slowest rank's cost where rows are dealt one by one, as if they shared nothing."""
    dealt = balance_rows(rows, groups, range(len(rows)), num_ranks, COST, packed=False)
    return max(cut_shares(rows, of_rank, 1, COST).slowest for of_rank in dealt.rows)


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in ("rows", "groups", "cut", "better")}
    for seed in range(args.seeds):
        rows, groups = tree_rows(random.Random(seed), args.groups)
        everything = range(len(rows))
        ideal = cut_shares(rows, everything, 1, COST).slowest / args.ranks
        plans: dict[str, Shares] = {
            "groups": group_shares(rows, groups, everything, args.ranks, COST),
            "cut": cut_shares(rows, everything, args.ranks, COST),
            "better": balance_rows(rows, groups, everything, args.ranks, COST),
        }
        found["rows"].append(flat_shares(rows, groups, args.ranks) / ideal)
        for name, shares in plans.items():
            found[name].append(shares.slowest / ideal)
    report = {name: {"mean": round(mean(values), 3), "max": round(max(values), 3)} for name, values in found.items()}
    print(json.dumps({"groups": args.groups, "ranks": args.ranks, "seeds": args.seeds, "slowest_over_ideal": report}))


if __name__ == "__main__":
    main()
