"""Everything a run needs in one process: model, tokenizer, agent, policy and learner, built from settings."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from envgym.agents.agent import Agent, make_agent
from envgym.agents.models.registry import load, resolve_model
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.backends import start_vllm
from envgym.agents.policies.local import pick_device
from envgym.agents.policies.transformers import TransformersPolicy
from envgym.agents.protocols import Policy, Sampling
from envgym.agents.search import STRATEGIES, Strategy
from envgym.agents.search.protocol import TreeStrategy
from envgym.core.trajectory import Group
from envgym.errors import InvalidInput, SettingsError, sentence
from envgym.plugins import resolve
from envgym.trainer.batch.rows import train_rows
from envgym.trainer.batch.value_targets import TrainingBatch, build_critic_batch
from envgym.trainer.env_source import EnvSource, build_env_sources, check_group, check_search
from envgym.trainer.learner.causal_lm import check_head, without_dropout
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.methods.corrections import CORRECTIONS
from envgym.trainer.methods.credit import CREDITS, CRITIC_CREDITS
from envgym.trainer.methods.curricula import CURRICULA
from envgym.trainer.methods.filters import FILTERS
from envgym.trainer.methods.losses import LOSSES
from envgym.trainer.methods.protocols import (
    Credit,
    CriticCredit,
    Curriculum,
    Filter,
    Shaping,
    TrajectoryCredit,
    needs_critic,
)
from envgym.trainer.methods.shaping import SHAPINGS
from envgym.trainer.settings import CriticSettings, ModelSettings, TrainSettings

_CREDITS: Final[Mapping[str, Callable[..., Credit | CriticCredit]]] = {**CREDITS, **CRITIC_CREDITS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A run's choice at every plug-in point."""

    curriculum: Curriculum
    search: Strategy
    filter: Filter
    shaping: Shaping
    credit: Credit | CriticCredit
    objective: Objective

    def credits(self, groups: Iterable[Group]) -> list[TrajectoryCredit]:
        """Shape the rewards of kept groups and return their episodes' credits.

        Raises: InvalidInput: the credit reads a critic's values.
        """
        if needs_critic(self.credit):
            got, do = type(self.credit).__name__, "use RunContext.build_batch, which asks the critic"
            raise InvalidInput(sentence("credit", "need no critic here", got, where="Method.credits", do=do))
        return [credit for group in groups for credit in self.credit(self.shaping(group))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The parts of one run."""

    env_sources: dict[str, EnvSource]
    method: Method
    model: Any
    """PreTrainedModel or PeftModel."""
    tokenizer: Any
    agent: Agent
    policy: Policy
    """Samples from `model` itself, or from a copy that `sync` renews."""
    learner: Learner
    device: torch.device

    def sync(self, version: int) -> None:
        """Let the policy sample from the learner's weights as they are now."""
        shares = isinstance(self.policy, TransformersPolicy)
        self.policy.update_weights(() if shares else merged_weights(self.model), version)

    def learning(self) -> AbstractContextManager[None]:
        """Hold off a policy that samples from the very weights that learn."""
        return self.policy.paused() if isinstance(self.policy, TransformersPolicy) else nullcontext()

    def close(self) -> None:
        """End what the policy started."""
        if (close := getattr(self.policy, "close", None)) is not None:  # an engine of its own has one
            close()

    def build_batch(self, groups: Iterable[Group]) -> TrainingBatch:
        """Shape the rewards of kept groups, credit their episodes, where needed with the critic, and make rows."""
        method = self.method
        once = method.objective.settings.shared_tokens == "once"
        if needs_critic(method.credit):
            shaped = [method.shaping(group) for group in groups]
            return build_critic_batch(shaped, method.credit, self.learner.compute_values, once=once)
        credits = method.credits(groups)
        return TrainingBatch(credits, train_rows(credits, once=once))

    def sampling(self, temperature: float) -> Sampling:
        """Return how turns are sampled at a temperature."""
        return Sampling(
            temperature=temperature,
            max_new_tokens=self.agent.settings.max_turn_tokens,
            stop_token_ids=self.agent.renderer.stop_token_ids,
        )


def build_method(settings: TrainSettings) -> Method:
    """Find the method at every plug-in point. Raises: SettingsError, UnknownName: before anything is loaded."""
    method = Method(
        curriculum=resolve("curriculum", settings.curriculum, CURRICULA),
        search=resolve("search", settings.search, STRATEGIES),
        filter=resolve("filter", settings.filter, FILTERS),
        shaping=resolve("shaping", settings.shaping, SHAPINGS),
        credit=resolve("credit", settings.credit, _CREDITS),
        objective=Objective(
            loss=resolve("loss", settings.loss, LOSSES),
            correction=resolve("correction", settings.correction, CORRECTIONS),
            settings=settings.objective,
            temperature=settings.rollout.temperature,
        ),
    )
    if settings.critic is not None and not needs_critic(method.credit):
        rule, do = "go with a credit that reads values", "choose such as credit.name=gae_turn, or leave the section out"
        raise SettingsError(sentence("critic", rule, f"credit {settings.credit.name}", where="settings", do=do))
    return method


def build_run_context(settings: TrainSettings, *, checkpoint: Path | None = None) -> RunContext:
    """Build the parts; cheap checks first, the model last.

    Args:
        settings: of the run.
        checkpoint: take the weights from here instead of from `model.name`.
    """
    method = build_method(settings)
    env_sources = build_env_sources(settings.envs, num_held_out=settings.evaluation.tasks)
    check_search(method.search, env_sources, settings)
    check_group(settings)
    device = pick_device(settings.model.device)
    if settings.model.threads is not None:
        torch.set_num_threads(settings.model.threads)
    torch.manual_seed(settings.run.seed)
    model, tokenizer = load_model(settings.model, device, checkpoint)
    agent = make_agent(settings.agent, tokenizer)
    check_head(model)
    if isinstance(method.search, TreeStrategy):
        method.search.check_tokenizer(tokenizer)
    critic = None
    if needs_critic(method.credit):
        critic = Critic(model, settings.critic or CriticSettings(), settings.optim, device=device)
    autocast = torch.bfloat16 if settings.model.autocast == "bfloat16" else None
    learner = Learner(
        model,
        optim=settings.optim,
        num_steps=settings.run.steps,
        device=device,
        autocast=autocast,
        critic=critic,
    )
    return RunContext(
        env_sources=env_sources,
        method=method,
        model=model,
        tokenizer=tokenizer,
        agent=agent,
        policy=_policy(settings, model, device, autocast),
        learner=learner,
        device=device,
    )


def _policy(settings: TrainSettings, model: Any, device: torch.device, autocast: torch.dtype | None) -> Policy:
    """Return what samples: from the learner's own model, or with vLLM from what the model was loaded from."""
    max_batch = settings.rollout.max_batch
    if settings.policy.backend == "transformers":
        return TransformersPolicy(
            model,
            device=device,
            max_batch=max_batch,
            autocast=autocast,
            is_shared=True,
            deterministic=settings.collect.deterministic,
        )
    asked = settings.model
    source = resolve_model(asked.name, tiny=asked.tiny)
    dtype = asked.dtype if autocast is None else "bfloat16"
    return start_vllm(
        settings.policy,
        source,
        dtype=dtype,
        head_dtype=asked.head_dtype,
        max_batch=max_batch,
        threads=asked.threads,
    )


def load_model(settings: ModelSettings, device: torch.device, checkpoint: Path | None) -> tuple[Any, Any]:
    """Return (model, tokenizer), with adapters where LoRA is asked for; the weights from `checkpoint`, if given."""
    source = str(checkpoint / "model") if checkpoint is not None and settings.lora is None else settings.name
    trainable = settings.lora is None
    loaded = load(
        source,
        dtype=settings.dtype,
        head_dtype=settings.head_dtype,
        device=str(device),
        trainable=trainable,
        tiny=settings.tiny,
    )
    model: Any = without_dropout(loaded.model).eval()
    if settings.lora is not None:
        model = _with_adapters(model, settings, checkpoint)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, loaded.tokenizer


def _with_adapters(model: nn.Module, settings: ModelSettings, checkpoint: Path | None) -> Any:  # PeftModel
    from peft import LoraConfig, PeftModel, get_peft_model  # optional, and heavy

    assert settings.lora is not None, "the caller checked"
    if checkpoint is not None:
        return PeftModel.from_pretrained(model, str(checkpoint / "model"), is_trainable=True)
    targets = settings.lora.target_modules
    config = LoraConfig(
        r=settings.lora.rank,
        lora_alpha=settings.lora.alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)
