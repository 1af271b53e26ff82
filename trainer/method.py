"""The method of a run: a choice at every plug-in point, built from settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from envgym.agents.catalog import SEARCH
from envgym.agents.evaluation.metrics.base import Metric, build_metrics
from envgym.agents.search import Strategy
from envgym.errors import SettingsError, sentence
from envgym.plugins import Choice
from envgym.trainer.catalog import (
    AGGREGATION,
    ALLOCATOR,
    ANNOTATOR,
    CONTROLLER,
    CORRECTION,
    CREDIT,
    CURRICULUM,
    FILTER,
    KL_ESTIMATOR,
    LOSS,
    REPLAY,
    SCHEDULE,
    SHAPING,
    WEIGHTS,
)
from envgym.trainer.checks.compatibility import (
    check_combination,
)
from envgym.trainer.learner.objective import ONE, Objective, Term
from envgym.trainer.methods.annotators.base import Annotator
from envgym.trainer.methods.controllers.base import Controller
from envgym.trainer.methods.protocols import (
    VALUES,
    Allocator,
    BatchCredit,
    Checkpointed,
    Credit,
    CriticCredit,
    Curriculum,
    Filter,
    Shaping,
)
from envgym.trainer.methods.replay.base import Replay
from envgym.trainer.methods.schedules import Constant, Schedule
from envgym.trainer.methods.scores import ScoreRequest, required_scores
from envgym.trainer.methods.weights.base import TokenWeights
from envgym.trainer.models.scores import check_score_names
from envgym.trainer.models.token_critic import check_critic_model
from envgym.trainer.sections import ObjectiveSettings, TermSettings
from envgym.trainer.settings import TrainSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A run's choice at every plug-in point."""

    curriculum: Curriculum
    search: Strategy
    filter: Filter
    shaping: Shaping
    credit: Credit | BatchCredit
    objective: Objective
    replay: Replay | None = None
    """None: nothing but what a step samples trains in it."""
    metrics: tuple[Metric, ...] = ()
    """What is measured of each step's episodes beside what always is."""
    allocator: Allocator | None = None
    annotators: Mapping[str, Annotator] = field(default_factory=dict)
    """By the name under which a failure is recorded, in order."""
    weights: tuple[TokenWeights, ...] = ()
    """Spread the advantages over tokens anew, in order."""
    controllers: tuple[Controller, ...] = ()
    """What changes between steps."""

    @property
    def scores(self) -> tuple[ScoreRequest, ...]:
        """What credit, weights and losses ask for. Raises: SettingsError: two different scores of one name."""
        values = (VALUES,) if isinstance(self.credit, CriticCredit) else ()
        weights = {f"weights.{number}": chosen for number, chosen in enumerate(self.weights)}
        losses = {f"objective, term {term.name}": term.loss for term in self.objective.terms}
        return values + required_scores({"credit": self.credit, **weights, **losses})

    def checkpointed_parts(self) -> dict[str, Checkpointed]:
        """Return the methods that have a state of their own, by their plug-in point; of a list, with their place."""
        named: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        named |= {f"controllers-{place}": controller for place, controller in enumerate(self.controllers)}
        named |= {f"objective-{term.name}": term.loss for term in self.objective.terms}
        return {name: method for name, method in named.items() if isinstance(method, Checkpointed)}


def build_method(settings: TrainSettings) -> Method:
    """Find the method at every plug-in point. Raises: SettingsError, UnknownName: before anything is loaded."""
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
        metrics=build_metrics(settings.rollout.metrics, success_at=settings.evaluation.success_at),
        allocator=None if settings.allocator is None else ALLOCATOR.build(settings.allocator),
        annotators=_build_annotators(settings),
        weights=tuple(WEIGHTS.build(choice) for choice in settings.weights),
        controllers=tuple(CONTROLLER.build(choice) for choice in settings.controllers),
    )
    check_score_names(method.scores, settings.models)
    check_combination(settings, method.credit)
    if settings.critic is not None and not isinstance(method.credit, CriticCredit):
        rule, do = (
            "be used with a credit that uses a critic",
            "choose such as credit.name=gae_turn, or leave the section out",
        )
        raise SettingsError(sentence("critic", rule, f"credit {settings.credit.name}", where="settings", do=do))
    check_critic_model(settings)
    return method


def _build_annotators(settings: TrainSettings) -> dict[str, Annotator]:
    """Build the annotators by name. Raises: SettingsError: two of one name, which could not be told apart."""
    built = [(choice.name, ANNOTATOR.build(choice)) for choice in settings.annotate]
    annotators: dict[str, Annotator] = {}
    for chosen, annotator in built:
        name = str(getattr(annotator, "name", chosen))
        if name in annotators:
            do = "give one of them another `name`"
            raise SettingsError(sentence("name of an annotator", "be unique", name, where="annotate", do=do))
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
    )


def _build_schedule(coef: float | Choice) -> Schedule:
    if isinstance(coef, Choice):
        return SCHEDULE.build(coef)
    return ONE if coef == 1 else Constant(value=coef)
