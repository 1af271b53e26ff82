"""Cut what dynamic sampling collected beyond a step's size."""

from envgym.trainer.points import FilterResult


def at_most(result: FilterResult, most: int) -> FilterResult:
    """Keep the first `most` of the kept groups; the others are dropped as `surplus`."""
    surplus = tuple((group, "surplus") for group in result.kept[most:])
    return FilterResult(result.kept[:most], result.dropped + surplus)
