"""Averages of the weights over train steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field, PrivateAttr, model_validator
from safetensors.torch import load_file, save_file
from torch import Tensor

from envgym.config.settings import Settings
from envgym.errors import sentence
from envgym.trainer.methods.controllers.base import Control, ControlContext

_FILE = "average.safetensors"

Weights = Mapping[str, Tensor]


class WeightAverage(Settings):
    """Keep an average of the policy's weights w, and copy it to the policy as the run ends, or periodically.

    With `decay` d it is exponential: m_1 = w_1, m_t = d m_(t-1) + (1 - d) w_t. With `last` k it is the mean of the last
    k weights, m_t = (w_(t-k+1) + ... + w_t) / k, or of all where there are fewer. t counts the steps that are averaged,
    one in `every`. The average is of float32 or wider, whatever the weights are.

    Source: 2209.14981 (LAWA, the last k), 2406.16768 (WARP, the exponential average of a policy in reinforcement
    learning; its anchor of the KL term and its merging of several runs are left out).
    """

    decay: float | None = Field(default=None, ge=0, lt=1)
    """Weight of the average before; the mean age of what is averaged is d / (1 - d) steps."""
    last: int | None = Field(default=None, ge=1)
    """Of how many weights it is the mean; each is kept in memory and in every checkpoint."""
    every: int = Field(default=1, ge=1)
    """Steps between the weights that are averaged."""
    start: int = Field(default=0, ge=0)
    """Steps of the run before the first weights that are averaged."""
    adopt_every: int = Field(default=0, ge=0)
    """Steps between those after which the policy gets the average and goes on from it; 0: as the run ends alone."""
    _weights: list[dict[str, Tensor]] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _check_kind(self) -> "WeightAverage":
        if (self.decay is None) == (self.last is None):
            got = "neither" if self.decay is None else "both"
            do = "set decay=0.99, or last=5"
            raise ValueError(sentence("decay or last", "be set", got, where="weight_average", do=do))
        return self

    def after_step(self, context: ControlContext) -> Control | None:
        """Add the weights of this step, and return the average where it is due."""
        step = context.step
        if step > self.start and (step - self.start - 1) % self.every == 0:
            self._add(context.weights)
        is_last = step == context.number("run.steps")
        is_due = is_last or (self.adopt_every > 0 and step % self.adopt_every == 0)
        return Control(weights=_mean(self._weights)) if self._weights and is_due else None

    def at_stop(self, context: ControlContext) -> Control | None:
        """Return the average, as no later step will."""
        del context
        return Control(weights=_mean(self._weights)) if self._weights else None

    def _add(self, weights: Weights) -> None:
        wide = {name: weight.float() if weight.itemsize < 4 else weight.clone() for name, weight in weights.items()}
        if self.last is not None:
            self._weights = [*self._weights, wide][-self.last :]
        elif not self._weights:
            self._weights = [wide]
        else:
            assert self.decay is not None, "the settings have checked it"
            (average,) = self._weights
            self._weights = [{n: average[n].to(w.device).lerp(w, 1 - self.decay) for n, w in wide.items()}]

    def save(self, folder: Path) -> None:
        named = {f"{place}/{n}": w.contiguous() for place, state in enumerate(self._weights) for n, w in state.items()}
        save_file(named, folder / _FILE, metadata={"kept": str(len(self._weights))})

    def load(self, folder: Path) -> None:
        self._weights = []
        for key, weight in sorted(load_file(folder / _FILE).items(), key=lambda item: int(item[0].partition("/")[0])):
            place, _, name = key.partition("/")
            if int(place) == len(self._weights):
                self._weights.append({})
            self._weights[-1][name] = weight


def _mean(weights: Sequence[Weights]) -> dict[str, Tensor]:
    return {name: sum((of[name] for of in weights[1:]), weights[0][name]) / len(weights) for name in weights[0]}
