"""How a learner updates the weights: the optimizer, the objective and the critic."""

from types import MappingProxyType
from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from envgym.config.plugins import Choice
from envgym.config.settings import Settings
from envgym.core.segments import Origin
from envgym.core.tree import Source
from envgym.errors import sentence

ADAMW_EPS: Final = 1e-8
"""Default of the constant that AdamW adds to its divisor."""
LARGEST_BETA: Final = 0.97
"""Decay rate up to which a moment in bfloat16 follows the gradients. An average moves by (1 - beta) of the distance to
a new value. A smaller move than half a step of bfloat16, 2**-9 of the value, is lost."""


class OptimSettings(Settings):
    """The optimizer and its schedule."""

    replaced_keys: ClassVar = MappingProxyType(
        {"eps": "set it with the optimizer: optim.optimizer={name: adamw, eps: 1e-8}"}
    )

    optimizer: Choice = Choice(name="adamw")
    """`adamw`; `muon`: matrices of the layers by orthogonalised momentum, the rest by AdamW; `adafactor`: second
    moments of rows and columns only; or your own."""
    lr: float = Field(default=1e-5, gt=0)
    """Learning rate after the warmup."""
    warmup_steps: int = Field(default=0, ge=0)
    """Train steps over which the learning rate rises from 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """After warmup, down to 0 at the last step."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's first and second moment; at most 0.97 for weights in bfloat16. `muon` uses them for the
    parameters that it leaves to AdamW. `adafactor` does not use them."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay: a matrix shrinks by this share times the learning rate; vectors do not."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient of one update."""
    minibatches: int = Field(default=1, ge=1)
    """Updates that one pass over a step's rows is cut into."""
    epochs: int = Field(default=1, ge=1)
    """Passes over a step's rows."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Tokens computed at a time, padding included; bounds memory, changes no result. A longer row stands alone."""
    packing: bool = True
    """Compute each prefix that rows share once; false: every row by itself, padded. Changes time and memory only."""
    compile_layers: bool = False
    """Compile the decoder layers (torch.compile): a longer first step, shorter ones after it, other rounding."""

    @property
    def eps(self) -> float:
        """Constant that AdamW adds to its divisor, from the settings of the optimizer."""
        return float(self.optimizer.settings.get("eps", ADAMW_EPS))


class TermSettings(Settings):
    """One more term of the objective."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Names its metrics: `loss/<name>`, `coef/<name>`."""
    loss: Choice
    """Loss of every token that the term reads; `nll` imitates."""
    coef: float | Choice = 1.0
    """What the term is multiplied with: a number (0: it is left out), or a schedule (`linear`, `cosine`, your own)."""
    aggregation: Choice | None = None
    """How its token losses become one number; null: as those of the policy's loss."""
    sources: tuple[Source, ...] = (Source.POLICY, Source.REPLAY)
    """Who produced the episodes of the rows that it reads."""
    origins: tuple[Origin, ...] = (Origin.POLICY,)
    """Origins of the tokens that it reads: `POLICY`, `DEMONSTRATION`, `TOOL`; no prompt, template or hint trains."""
    may_be_empty: str | None = Field(default=None, min_length=1)
    """Why there may be no token that the term reads; null: the run stops if the first rows of its sources hold none."""

    @model_validator(mode="after")
    def _check_origins(self) -> "TermSettings":
        trainable = (Origin.POLICY, Origin.DEMONSTRATION, Origin.TOOL)
        for what, values, options in (("origins", self.origins, trainable), ("sources", self.sources, tuple(Source))):
            if not values or set(values) - set(options):
                must, do, got = f"be some of {', '.join(options)}", "leave the others out", ", ".join(values) or "none"
                raise ValueError(sentence(f"{what} of a term", must, got, where=f"term {self.name}", do=do))
        return self


class ObjectiveSettings(Settings):
    """How token losses become the number that is minimised."""

    aggregation: Choice = Choice(name="token-mean")
    """`token-mean`, `token-sum`, `seq-mean-token-sum`, `seq-mean-token-mean`, `seq-mean-token-sum-norm` (max_tokens)"""
    shared_tokens: Literal["per_path", "once"] = "per_path"
    """A token that k rows share trains k times, or once (weight 1/k)."""
    old_policy: Literal["recomputed", "rollout"] = "recomputed"
    """What the loss's ratio is taken to: the policy as the step began, of which the learner computes log-probs anew; or
    the one that sampled, by the log-probs that it stated (bypass), so that the ratio corrects for it, too."""
    kl_estimator: Choice = Choice(name="k3")
    """Estimator of KL(policy || reference) in the loss: `k1`, `k2` or `k3`."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL term; 0: no reference model is kept."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; 0: there is none."""
    policy_coef: float | Choice = 1.0
    """What the policy's loss is multiplied with: a number, or a schedule over train steps."""
    terms: tuple[TermSettings, ...] = ()
    """What is minimised beside the policy's loss, its KL term and its entropy bonus."""

    @model_validator(mode="after")
    def _check_names(self) -> "ObjectiveSettings":
        names = ["policy", "kl_reference", "entropy_bonus", *(term.name for term in self.terms)]
        if repeated := [name for name in names if names.count(name) > 1]:
            do = "rename one"
            raise ValueError(sentence("names of terms", "differ", repeated[0], where="objective.terms", do=do))
        return self


class CriticSettings(Settings):
    """The value head of a credit that reads values."""

    model: str | None = None
    """The model in `models`, of the kind `token_critic`, whose body the head reads; null: the policy."""
    lr: float = Field(default=0.05, gt=0)
    """Learning rate of the head: about how far one update moves a value; constant on the policy's body. Each update is
    AdamW's, with the betas and eps of `optim`."""
    detach: bool = True
    """The head learns from the policy's hidden states as they are, so that the policy's gradient is that of its
    objective alone, and exact for any critic. false: the value loss trains the policy's body too. Another model's body
    always learns."""
    coef: float = Field(default=0.5, gt=0)
    """Weight of the value loss beside the policy's; it matters only without `detach`, as Adam undoes it in the head."""
    clip: float | None = Field(default=None, gt=0)
    """How far a value may move within a train step before it stops learning; null: any."""
