"""A critic with weights of its own: a second model with a value head, whose values a credit reads token by token."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from torch import nn

from envgym.config.plugins import Choice
from envgym.errors import InvalidInput, SettingsError, check_known
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.learner.causal_lm import causal_lm
from envgym.trainer.learner.checkpoint import load_value_head, part_folder, require_checkpoint
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.learner import schedule
from envgym.trainer.learner.settings import CriticSettings, OptimSettings
from envgym.trainer.learner.value_updates import value_step
from envgym.trainer.methods.annotators.base import MODEL
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.base import ModelContext
from envgym.trainer.models.trained import WEIGHTS, LearningModel
from envgym.trainer.settings import NamedModelSettings


class TokenCritic(LearningModel):
    """Predict V(s_t) of the prefix before every sampled token; body and head learn the credit's value targets.

    It begins as a copy of the policy, as a model from a directory, or as what another run has trained: its critic, or a
    named model with a value head, such as a reward model. A head that is not taken over begins at 0. Every step it
    learns from the policy's minibatches and packs, by the value loss of the section `critic`.

    Source: 1707.06347 (PPO), with value and policy apart as in 2203.02155 and 2411.15124.
    """

    def __init__(
        self,
        context: ModelContext,
        *,
        path: str | None = None,
        run: str | None = None,
        model: str | None = None,
        lr: float = 1e-6,
        epochs: int | None = None,
        warmup_steps: int = 0,
        decay: Literal["constant", "linear", "cosine"] = "constant",
        grad_clip: float = 1.0,
    ) -> None:
        """Name the model.

        Args:
            context: of the run.
            path: model that it begins with, as `model.name`; null: a copy of the policy.
            run: directory of a training run; the weights and the critic's head are those of its newest checkpoint.
            model: a named model of that run instead.
            lr: learning rate of the body; that of the head is `critic.lr`.
            epochs: passes over the rows of a step; null: as many as the policy's, `optim.epochs`.
            warmup_steps: train steps over which both rates rise.
            decay: of both rates afterwards, to 0 at the last step.
            grad_clip: largest norm of the gradient of the body, and of the head's.
        """
        if (run is not None and path is not None) or (model is not None and run is None):
            got = f"path={path}, run={run}, model={model}"
            do = "set either path or run, and model only with run"
            raise SettingsError.of(
                "initial weights of a critic", "come from one place", got, where="model token_critic", do=do
            )
        if epochs is not None and epochs < 1:
            do = "pass e.g. epochs=4, or leave it out"
            raise SettingsError.of("epochs", "be at least 1", epochs, where="model token_critic", do=do)
        self._epochs = epochs
        self._folder = None if run is None else _folder_of(Path(run), model)
        of_run = context.optim
        super().__init__(
            context,
            path=path if self._folder is None else str(self._folder / WEIGHTS),
            optim=OptimSettings(
                lr=lr,
                warmup_steps=warmup_steps,
                decay=decay,
                grad_clip=grad_clip,
                betas=of_run.betas,
                optimizer=Choice.model_validate({"name": "adamw", "eps": of_run.eps}),
            ),
        )

    def check(self) -> None:
        """See that there is such a model, and that it can read the longest context.

        Raises: InvalidInput: there is none, its tokenizer is not the policy's, or it has too few positions.
        """
        super().check()
        if self._path is not None:  # what it begins with does not depend on the run, so it is loaded at once
            config = causal_lm(self.learner.model).config.get_text_config()
            positions = getattr(config, "max_position_embeddings", None)
            needed = self._context.agent.max_context_tokens
            if positions is not None and positions < needed:
                do = "lower agent.max_context_tokens, or name a model with more positions"
                rule = f"have at least the {needed} positions of agent.max_context_tokens"
                raise InvalidInput.of("critic", rule, positions, where=f"model {self._path}", do=do)

    def _critic_on(self, module: nn.Module) -> Critic:
        critic_settings = self._context.critic
        own = critic_settings.model_copy(update={"detach": False})
        critic = Critic(module, own, self._optim, device=self._context.device)
        if self._folder is not None:
            load_value_head(self._folder, critic)
        return critic

    @property
    def _rates(self) -> Sequence[str]:
        return (self._setting("lr"), "critic.lr")

    def epochs(self, like: OptimSettings) -> int:
        """Return the passes over the rows of a step whose policy makes those of `like`."""
        return self._epochs or like.epochs

    def learn(self, rows: Sequence[TrainRow], like: OptimSettings, *, step: int) -> Metrics:
        """Make the updates of a step on the value targets of its rows, in the minibatches that `like` says.

        Raises: InvalidInput: the loss or the gradient is not finite.
        """
        if not any(row.supervised for row in rows):
            return {}
        factor = schedule(self._optim, step, self._context.run.steps)
        return value_step(self.learner, rows, epochs=self.epochs(like), num_minibatches=like.minibatches, factor=factor)


def _folder_of(run: Path, model: str | None) -> Path:
    """Return where the newest checkpoint of a run keeps a model. Raises: RunError: it has none. UnknownName."""
    checkpoint = require_checkpoint(run)
    if model is None:
        return checkpoint
    names = [folder.parent.name.removeprefix("model_") for folder in part_folder(checkpoint, "").glob("model_*/model")]
    check_known("model", model, names, where=f"models of the run {run}")
    return part_folder(checkpoint, f"model_{model}")


def check_critic_model(critic: CriticSettings | None, models: Mapping[str, NamedModelSettings]) -> None:
    """See that the section `critic` and the critics among `models` belong together.

    Raises: UnknownName: the critic is of a model that is not there. SettingsError: it is of one of another kind, or a
    critic of `models` is read by nothing.
    """
    named = None if critic is None else critic.model
    if named is not None:
        remedy = f"add models.{named} to the settings"
        check_known("model", named, models, where="critic.model", remedy=remedy)
    for name, model_settings in models.items():
        kind = MODEL.load(model_settings.kind.name, where=f"models.{name}")
        is_critic = isinstance(kind, type) and issubclass(kind, TokenCritic)
        if is_critic and name != named:
            must, got = "be read by a credit", f"critic.model={named}"
            do = f"set critic.model={name} with a credit such as gae_token, or leave the model out"
            raise SettingsError.of(f"critic {name}", must, got, where="models", do=do)
        if name == named and not is_critic:
            must, do = "be a critic with weights of its own", f"set models.{name}.kind.name=token_critic"
            raise SettingsError.of(f"model {name}", must, model_settings.kind.name, where="critic.model", do=do)
