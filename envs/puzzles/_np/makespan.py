"""Scheduling on equal machines, the last to end as early as possible. Rows: the number of machines; the times."""

from functools import lru_cache
from itertools import count

import numpy as np

from envgym.envs.puzzles._np.packing import loads_of, pack
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, HardProblem, Instance

JOBS_PER_MACHINE = 3


def draw(rng: np.random.Generator, num: int) -> Instance:
    """Draw times, for a machine for every three jobs."""
    return ((num // JOBS_PER_MACHINE,), tuple(rng.integers(5, 41, size=num).tolist()))


def show(instance: Instance) -> str:
    """Write the goal and the times."""
    (machines,), times = instance
    goal = f"Scheduling: give each job to one of {machines} machines, so that the last machine is done as early as"
    rows = "\n".join(f"{job}: {time}" for job, time in enumerate(times, start=1))
    return f"{goal} possible.\nJob: time\n{rows}"


def evaluate(instance: Instance, answer: Answer) -> int | str:
    """Return the time of the machine that has the most."""
    return max(loads_of(instance[1], answer).values())


@lru_cache(maxsize=4096)
def solve(instance: Instance) -> Answer:
    """Return a best schedule: the first time in which all machines can end."""
    (machines,), times = instance
    lowest = max(*times, -(-sum(times) // machines))
    return next(answer for time in count(lowest) if (answer := pack(times, time, machines)) is not None)


def baseline(instance: Instance) -> float:
    """Return what the rule of the longest job first reaches: each goes to the machine that has the least so far."""
    (machines,), times = instance
    loads = [0] * machines
    for time in sorted(times, reverse=True):
        loads[loads.index(min(loads))] += time
    return max(loads)


MAKESPAN = HardProblem(
    sizes=(6, 9, 12),
    form=AnswerForm.GROUPS,
    is_maximum=False,
    asked="the machine of each job",
    draw=draw,
    show=show,
    num_things=lambda instance: len(instance[1]),
    num_groups=lambda instance: instance[0][0],
    evaluate=evaluate,
    solve=solve,
    baseline=baseline,
    canonical=lambda instance: (instance[0], tuple(sorted(instance[1]))),
)
