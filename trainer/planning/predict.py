"""The time of a train step, the memory of each device, and the bottleneck, predicted from settings and constants.

One step samples turns, learns from their tokens, sends new weights to the policy servers, and checks them.
`docs/scaling.md` states the formulas and where each constant was measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from envgym.trainer.learner.objective import Objective
from envgym.trainer.planning import memory, step_time
from envgym.trainer.planning.constants import ControlCosts, Device
from envgym.trainer.planning.engine import samples_in_rounds
from envgym.trainer.planning.shapes import ModelShape
from envgym.trainer.planning.workload import Packing, Workload
from envgym.trainer.settings import TrainSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run takes on its devices. Times are seconds of a train step, sizes are bytes."""

    learners: int
    servers: int
    sampling_s: float
    """The engines, and the environments that they wait for."""
    control_s: float
    """The run's own process, or each rollout worker, for the turns."""
    learn_s: float
    update_s: float
    """New weights to the policy servers."""
    checks_s: float
    """The checks that sampler and learner have the same weights."""
    in_rounds: bool
    """Whether engines and controller wait for each other; else they work at the same time."""
    overlaps: bool
    """Whether sampling and learning are at the same time."""
    learner_memory: Mapping[str, int]
    """Part -> bytes, of learner rank 0, which holds the most."""
    sampler_memory: Mapping[str, int]
    """Part -> bytes, on a device of a policy server, or of an engine that takes turns with the learner; else empty."""
    tokens: int
    """Tokens that are computed in a pass of learning."""

    @property
    def collect_s(self) -> float:
        """The time of engines and controller: the sum in rounds, else that of the slower one."""
        return self.sampling_s + self.control_s if self.in_rounds else max(self.sampling_s, self.control_s)

    @property
    def step_s(self) -> float:
        """Wall time of a train step."""
        after = self.learn_s + self.update_s + self.checks_s
        return max(self.collect_s, after) if self.overlaps else self.collect_s + after

    @property
    def seconds(self) -> Mapping[str, float]:
        """Part of a step -> its time."""
        return {
            "sampling": self.sampling_s,
            "control": self.control_s,
            "learning": self.learn_s,
            "update": self.update_s,
            "checks": self.checks_s,
        }

    @property
    def bottleneck(self) -> str:
        """The part that takes most of the time."""
        return max(self.seconds, key=self.seconds.__getitem__)

    def to_json(self) -> dict[str, object]:
        """Return the plan as plain JSON types."""
        memory = {"learner": {**self.learner_memory, "total": sum(self.learner_memory.values())}}
        if self.sampler_memory:
            memory["sampler"] = {**self.sampler_memory, "total": sum(self.sampler_memory.values())}
        return {
            "learners": self.learners,
            "servers": self.servers,
            "seconds": {**self.seconds, "step": self.step_s},
            "overlaps": self.overlaps,
            "bottleneck": self.bottleneck,
            "memory_bytes": memory,
            "computed_tokens": self.tokens,
        }


def predict(
    settings: TrainSettings,
    workload: Workload,
    shape: ModelShape,
    device: Device,
    control: ControlCosts,
    objective: Objective,
) -> Plan:
    """Predict a train step; `objective` decides how many passes over the rows there are."""
    launch = settings.launch
    return Plan(
        learners=launch.learners,
        servers=launch.servers,
        sampling_s=step_time.sampling_s(settings, workload, shape, device),
        control_s=step_time.control_s(settings, workload, control),
        learn_s=step_time.learn_s(settings, workload, shape, device, objective),
        update_s=step_time.update_s(settings, shape, device, control),
        checks_s=step_time.checks_s(settings, shape, device),
        in_rounds=samples_in_rounds(settings),
        overlaps=settings.rollout.overlaps and launch.servers > 0,
        learner_memory=memory.learner_memory(settings, workload, shape, device, is_coupled=objective.is_coupled),
        sampler_memory=memory.sampler_memory(settings, workload, shape, device),
        tokens=Packing.of(settings, workload, is_coupled=objective.is_coupled).tokens,
    )
