"""Scheduling on equal machines, the last to end as early as possible. Rows: the number of machines; the times."""

from itertools import count

import numpy as np

from envgym.envs.puzzles._np.packing import loads_of, pack
from envgym.envs.puzzles._np.problem import Answer, AnswerForm, Instance, NumbersProblem

JOBS_PER_MACHINE = 3


class Makespan(NumbersProblem):
    """Scheduling on equal machines."""

    sizes = (6, 9, 12)
    form, is_maximum = AnswerForm.GROUPS, False
    answer_text = "the machine of each job"
    goal = (
        "Scheduling: give each job to one of {first} machines, so that the last machine is done as early as possible.\n"
        "Job: time"
    )

    def draw(self, rng: np.random.Generator, num: int) -> Instance:
        return ((num // JOBS_PER_MACHINE,), tuple(rng.integers(5, 41, size=num).tolist()))

    def num_groups(self, instance: Instance) -> int:
        return instance[0][0]

    def evaluate(self, instance: Instance, answer: Answer) -> int | str:
        return max(loads_of(instance[1], answer).values())

    def find_best(self, instance: Instance) -> Answer:
        """Return a best schedule: the first time in which all machines can end."""
        (machines,), times = instance
        lowest = max(*times, -(-sum(times) // machines))
        return next(answer for time in count(lowest) if (answer := pack(times, time, machines)) is not None)

    def baseline(self, instance: Instance) -> float:
        """Return the makespan of the longest job first: each job goes to the machine that has the least so far."""
        (machines,), times = instance
        loads = [0] * machines
        for time in sorted(times, reverse=True):
            loads[loads.index(min(loads))] += time
        return max(loads)
