"""The method of a run: a choice at every plug-in point, built from settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from envgym.agents.evaluation.metrics.base import Metric, build_metrics
from envgym.agents.loop.hints import PLAIN
from envgym.agents.search.protocol import SEARCH
from envgym.config.plugins import Choice
from envgym.core.segments import Origin
from envgym.core.trajectory import Group
from envgym.core.tree import Source
from envgym.errors import SettingsError
from envgym.trainer.checks.compatibility import check_choices, check_critic_stays, warn_of_other_rewards
from envgym.trainer.learner.objective import ONE, Objective, Term
from envgym.trainer.learner.optimizers.base import check_optimizer, check_rates
from envgym.trainer.learner.ranks.meeting import is_torchrun
from envgym.trainer.learner.settings import ObjectiveSettings, TermSettings
from envgym.trainer.methods.annotators.base import ANNOTATOR, Annotator
from envgym.trainer.methods.controllers.base import CONTROLLER, Controller
from envgym.trainer.methods.corrections.base import CORRECTION
from envgym.trainer.methods.losses.aggregate import AGGREGATION
from envgym.trainer.methods.losses.base import LOSS
from envgym.trainer.methods.losses.kl import KL_ESTIMATOR
from envgym.trainer.methods.protocols import (
    ALLOCATOR,
    CREDIT,
    CURRICULUM,
    FILTER,
    SHAPING,
    VALUES,
    Checkpointed,
    CriticCredit,
    FilterResult,
    ObservingFilter,
)
from envgym.trainer.methods.replay.base import REPLAY
from envgym.trainer.methods.requirements import Choices, GroupPlugins, TermChoice
from envgym.trainer.methods.schedules import SCHEDULE, Constant, Schedule
from envgym.trainer.methods.scores import ScoreRequest, required_scores
from envgym.trainer.methods.weights.base import WEIGHTS, TokenWeights
from envgym.trainer.models.scores import check_score_names
from envgym.trainer.models.token_critic import check_critic_model
from envgym.trainer.settings import TrainSettings
from envgym.trainer.tables import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(GroupPlugins):
    """A run's choice at every plug-in point."""

    objective: Objective
    success_at: float = 1.0
    """Reward from which an episode is a success."""
    metrics: tuple[Metric, ...] = ()
    """What is measured of each step's episodes beside what always is."""
    annotators: Mapping[str, Annotator] = field(default_factory=dict)
    """By the name under which a failure is recorded, in order."""
    weights: tuple[TokenWeights, ...] = ()
    """Spread the advantages over tokens anew, in order."""
    controllers: tuple[Controller, ...] = ()
    """What changes between steps."""

    def keep_groups(self, groups: Sequence[Group]) -> FilterResult:
        """Filter groups by the rewards that train; the kept groups have these rewards.

        A filter whose attribute `rewards` is "env" is given the rewards of the env instead.
        """
        if self._filters_env_rewards:
            result = self.filter(groups)
            return result._replace(kept=tuple(map(self.shaping, result.kept)))
        return self.filter([self.shaping(group) for group in groups])

    def observe_filtered(self, groups: Sequence[Group], *, step: int) -> None:
        """Show an observing filter all groups that a step collected, with the rewards that it filters by."""
        if isinstance(self.filter, ObservingFilter):
            observed_groups = groups if self._filters_env_rewards else [self.shaping(group) for group in groups]
            self.filter.observe(observed_groups, step=step)

    @property
    def _filters_env_rewards(self) -> bool:
        return getattr(self.filter, "rewards", "shaped") == "env"

    @property
    def task_readers(self) -> dict[str, object]:
        """The plug-ins that may read inputs of tasks, by their place in the settings and their name."""
        annotators = {
            f"annotate {KINDS['annotator'].name_of(annotator)}, annotation {name}": annotator
            for name, annotator in self.annotators.items()
        }
        points = ("curriculum", "allocator", "filter", "shaping", "credit")
        plugins = {point: plugin for point in points if (plugin := getattr(self, point)) is not None}
        return {f"{point} {KINDS[point].name_of(plugin)}": plugin for point, plugin in plugins.items()} | annotators

    @property
    def scores(self) -> tuple[ScoreRequest, ...]:
        """What credit, weights and losses ask for. Raises: SettingsError: two different scores of one name."""
        values = (VALUES,) if isinstance(self.credit, CriticCredit) else ()
        weights = {f"weights.{number}": token_weights for number, token_weights in enumerate(self.weights)}
        losses = {f"objective, term {term.name}": term.loss for term in self.objective.terms}
        return values + required_scores({"credit": self.credit, **weights, **losses})

    @property
    def parts(self) -> dict[str, object]:
        """Everything that the method is made of, by its plug-in point; of a list, with its place."""
        lists = {name: getattr(self, name) for name in ("metrics", "weights", "controllers")}
        lists["annotators"] = tuple(self.annotators.values())
        named: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        named |= {f"{name}-{place}": method for name, of in lists.items() for place, method in enumerate(of)}
        named |= self.objective.plugins
        different = {id(method): (name, method) for name, method in reversed(named.items())}  # the first name of each
        return dict(reversed(different.values()))

    def checkpointed_parts(self) -> dict[str, Checkpointed]:
        """Return the parts that have a state of their own."""
        return {name: part for name, part in self.parts.items() if isinstance(part, Checkpointed)}


def build_method(settings: TrainSettings, *, warns: bool = True) -> Method:
    """Find the method at every plug-in point.

    Args:
        settings: of the run.
        warns: log choices that are allowed and may surprise, and check learning rates; not again for later settings of
            the same run.

    Raises: SettingsError, UnknownName: before anything is loaded.
    """
    is_bfloat16 = settings.model.precision == "bfloat16" and settings.model.lora is None  # adapters are in float32
    is_sharded = settings.launch.learners > 1 or is_torchrun()
    optimizer = check_optimizer(settings.optim, is_bfloat16=is_bfloat16, is_sharded=is_sharded)
    if warns:
        rates = [("optim.lr", settings.optim.lr)]
        rates += [("sft.lr", phase.lr) for phase in (settings.sft.phases if settings.sft is not None else [])]
        check_rates(optimizer, settings.optim, rates)
    method = Method(
        curriculum=CURRICULUM.build(settings.curriculum),
        search=SEARCH.build(settings.search),
        filter=FILTER.build(settings.filter),
        shaping=SHAPING.build(settings.shaping),
        credit=CREDIT.build(settings.credit),
        objective=Objective(
            loss=LOSS.build(settings.loss),
            correction=CORRECTION.build(settings.correction),
            aggregation=AGGREGATION.build(settings.objective.aggregation),
            kl_estimator=KL_ESTIMATOR.build(settings.objective.kl_estimator),
            settings=settings.objective,
            temperature=settings.sampling.temperature,
            policy_coef=_build_schedule(settings.objective.policy_coef),
            further=tuple(build_term(term, settings.objective) for term in settings.objective.terms),
        ),
        replay=None if settings.replay is None else REPLAY.build(settings.replay),
        success_at=settings.evaluation.success_at,
        metrics=build_metrics(settings.rollout.metrics, success_at=settings.evaluation.success_at),
        allocator=None if settings.allocator is None else ALLOCATOR.build(settings.allocator),
        annotators=_build_annotators(settings),
        weights=tuple(WEIGHTS.build(choice) for choice in settings.weights),
        controllers=tuple(CONTROLLER.build(choice) for choice in settings.controllers),
    )
    check_score_names(method.scores, settings.models)
    plugins = [*method.parts.values(), *(term.loss for term in method.objective.further)]
    choices = _run_choices(method, settings)
    check_choices(choices, plugins)
    if warns:
        warn_of_other_rewards(choices)
    if settings.critic is not None and not isinstance(method.credit, CriticCredit):
        do = "choose such as credit.name=gae_turn, or leave the section out"
        must, got = "be used with a credit that uses a critic", f"credit {settings.credit.name}"
        raise SettingsError.of("critic", must, got, where="settings", do=do)
    check_critic_model(settings.critic, settings.models)
    return method


def _run_choices(method: Method, settings: TrainSettings) -> Choices:
    """Return the choices of a run, as the requirements of its plug-ins read them."""
    objective = method.objective
    terms = [TermChoice("the policy's loss", settings.loss.name, objective.loss, (Source.POLICY,), {Origin.POLICY})]
    for of, term in zip(settings.objective.terms, objective.further, strict=True):
        terms.append(TermChoice(f"objective term {of.name}", of.loss.name, term.loss, of.sources, term.origins))
    readers: list[tuple[str, object]] = [(f"loss {item.loss_name}", item.loss) for item in terms]
    readers += [(f"weights {of.name}", plugin) for of, plugin in zip(settings.weights, method.weights, strict=True)]
    sections = ("rollout", "optim", "objective", "critic", "demonstrations")
    return Choices(
        **{field.name: getattr(method, field.name) for field in fields(GroupPlugins)},
        **{section: getattr(settings, section) for section in sections},
        names={section: choice.name for section, choice in settings if isinstance(choice, Choice)},
        correction=objective.correction,
        loss=objective.loss,
        terms=terms,
        readers=[*readers, (f"credit {settings.credit.name}", method.credit)],
        wrapper_prompts=(PLAIN,) if any(env.wrappers for env in settings.envs) else (),
        num_steps=settings.run.steps,
    )


def changed_method(method: Method, before: TrainSettings, after: TrainSettings) -> Method:
    """Return the method after a change of settings. Raises: SettingsError: it needs a critic, and there is none."""
    built = build_method(after, warns=False)
    check_critic_stays(method.credit, built.credit, after.credit.name)
    unchanged = {
        field.name: getattr(method, field.name)
        for field in fields(Method)
        if field.name in TrainSettings.model_fields
        and field.name != "objective"
        and getattr(before, field.name) == getattr(after, field.name)
    }
    unchanged["annotators"] = method.annotators  # no controller may change them, and groups under way are read by these
    changed, parts = replace(built, **unchanged), method.checkpointed_parts()
    for name, new in changed.checkpointed_parts().items():
        old = parts.get(name)
        if old is not None and old is not new and type(old) is type(new):
            with TemporaryDirectory() as folder:
                old.save(Path(folder))
                new.load(Path(folder))
    return changed


def _build_annotators(settings: TrainSettings) -> dict[str, Annotator]:
    """Build the annotators by name. Raises: SettingsError: two of one name, which could not be told apart."""
    built = [(choice.name, ANNOTATOR.build(choice)) for choice in settings.annotate]
    annotators: dict[str, Annotator] = {}
    for default, annotator in built:
        name = str(getattr(annotator, "name", default))
        do = "give one of them another `name`"
        SettingsError.unless(name not in annotators, "name of an annotator", "be unique", name, where="annotate", do=do)
        annotators[name] = annotator
    return annotators


def build_term(term: TermSettings, objective: ObjectiveSettings) -> Term:
    """Build a further term of the objective. Raises: SettingsError, UnknownName: its parts cannot be built."""
    return Term(
        name=term.name,
        loss=LOSS.build(term.loss),
        coef=_build_schedule(term.coef),
        aggregation=AGGREGATION.build(term.aggregation or objective.aggregation),
        sources=frozenset(term.sources),
        origins=frozenset(term.origins),
        may_be_empty=term.may_be_empty,
    )


def _build_schedule(coef: float | Choice) -> Schedule:
    if isinstance(coef, Choice):
        return SCHEDULE.build(coef)
    return ONE if coef == 1 else Constant(value=coef)
