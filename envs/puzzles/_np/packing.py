"""Whether things fit into bins of one capacity: the question behind bin packing and the makespan."""

from collections.abc import Sequence

from envgym.envs.puzzles._np.problem import Answer


def pack(sizes: Sequence[int], capacity: int, num_bins: int) -> Answer | None:
    """Return a bin, from 1, for each thing so that no bin holds more than `capacity`; None where there is no way.

    Depth first, largest things and fullest bins first; of bins that hold the same one is tried, loads from which the
    rest did not fit are remembered, and what stays empty for certain may not be more than the bins have to spare.
    """
    spare, smallest = num_bins * capacity - sum(sizes), min(sizes)
    order = sorted(range(len(sizes)), key=lambda thing: -sizes[thing])
    loads, bins = [0] * num_bins, [0] * len(sizes)
    hopeless: set[tuple[int, ...]] = set()

    def is_packed(index: int) -> bool:
        if index == len(order):
            return True
        key = (index, *sorted(loads))
        lost = sum(capacity - load for load in loads if capacity - load < smallest)
        if lost > spare or key in hopeless:
            return False
        size = sizes[order[index]]
        for load in sorted({load for load in loads if load + size <= capacity}, reverse=True):
            place = loads.index(load)
            loads[place] += size
            bins[order[index]] = place + 1
            if is_packed(index + 1):
                return True
            loads[place] = load
        hopeless.add(key)
        return False

    return tuple(bins) if spare >= 0 and is_packed(0) else None


def loads_of(sizes: Sequence[int], bins: Answer) -> dict[int, int]:
    """Return the load of each used bin."""
    loads: dict[int, int] = {}
    for size, place in zip(sizes, bins, strict=True):
        loads[place] = loads.get(place, 0) + size
    return loads
