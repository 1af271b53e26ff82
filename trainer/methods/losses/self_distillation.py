"""Self-distillation: the policy without a hint imitates itself with the hint."""

import torch

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss, log_ratio
from envgym.trainer.methods.losses.kl import k3
from envgym.trainer.methods.scores import POLICY_MODEL, ScoreRequest


class SelfDistillation(Settings):
    """Return ρ (e^{-d} - 1 + d) of every token: d = log π - log π_teacher, ρ = π/π_old, gradient through both.

    The teacher is a model that reads another first context, such as one with a skill in it; by default the policy
    itself as the step begins. It scores the tokens that were sampled without the hint, and nothing else: no second
    rollout, no distributions. On-policy it estimates KL(π || π_teacher), never below 0. A tree without the other
    context is scored under its own, and adds next to nothing.

    Source: 2604.10674 (Skill-SD), a term beside GRPO's with a coefficient of 0.001.
    """

    prompt: str = "skill"
    """Name in `Tree.prompts` of the teacher's first context; a curriculum asks for it."""
    model: str = POLICY_MODEL
    """The teacher: `policy`, `reference`, or a frozen model of `models`."""

    @property
    def scores(self) -> tuple[ScoreRequest, ...]:
        name = f"{self.model} with {self.prompt}"
        return (ScoreRequest(name=name, model=self.model, prompt=self.prompt, without_prompt="own"),)

    def __call__(self, batch: LossBatch) -> TokenLoss:
        (teacher,), mask_BT = self.scores, batch.loss_mask_BT
        d_BT = torch.where(mask_BT, batch.logprobs_BT - batch.score(teacher.name), 0.0)
        ratio_BT = log_ratio(batch.logprobs_BT, batch.old_logprobs_BT, mask_BT).exp()
        return TokenLoss(losses_BT=ratio_BT * k3(d_BT))
