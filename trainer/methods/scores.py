"""Scores: a number per sampled token that a credit, token weights or a loss ask for, computed once a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envgym.errors import SettingsError

POLICY_MODEL = "policy"
"""Stands for the policy itself where a model is named."""
Quantity = Literal["logprobs", "entropies", "values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """A number per sampled token, from a pass without gradient before a step's first update.

    Whoever reads it (a credit, token weights, the loss of a term) has it in an attribute `scores`, a tuple of these,
    and finds it under its name: in `CreditContext.scores`, `TrainRow.scores` and `LossBatch.scores`.
    """

    name: str
    model: str = POLICY_MODEL
    """`policy` with its present weights, `reference`, or a frozen model of this process from `models`."""
    quantity: Quantity = "logprobs"
    """Of the token, of the distribution that it was drawn from (both at the temperature of sampling, in nats), or the
    critic's value before it (of the policy alone)."""
    prompt: str | None = None
    """Name in `Tree.prompts` of another rendering of the first context, which then stands in its place; None: as it
    was sampled."""
    without_prompt: Literal["refuse", "own"] = "refuse"
    """What becomes of a tree that has no such rendering: the run stops, or its own context is taken."""

    def __post_init__(self) -> None:
        """Refuse a value of another model. Raises: SettingsError."""
        if self.quantity == "values" and (self.model != POLICY_MODEL or self.prompt is not None):
            got, do = f"{self.model} under prompt {self.prompt}", "request log-probs or entropies there"
            raise SettingsError.of("values", "be the critic's, as sampled", got, where=f"score {self.name}", do=do)


def required_scores(plugins: Mapping[str, object]) -> tuple[ScoreRequest, ...]:
    """Return the scores that some plug-ins request in their attribute `scores`, each one once.

    Args:
        plugins: by the place in the settings that chose each.

    Raises: SettingsError: two different scores of one name.
    """
    by_name: dict[str, ScoreRequest] = {}
    for where, plugin in plugins.items():
        requests: Sequence[ScoreRequest] = getattr(plugin, "scores", ())
        for request in requests:
            if by_name.setdefault(request.name, request) != request:
                do = "give one of them another name"
                got = f"{by_name[request.name]} and {request}"
                raise SettingsError.of(f"score {request.name}", "have one meaning", got, where=where, do=do)
    return tuple(by_name.values())
