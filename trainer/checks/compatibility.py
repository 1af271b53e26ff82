"""What of a run's choices cannot work together, or does nothing, and is refused before the run begins.

The rules at the end know plug-ins of ours by their names; what another package or an import path names is taken as
meant.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final, NamedTuple

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.search import Strategy
from envgym.agents.search.snapshots import Branching, resolve_branching
from envgym.core.tree import Source
from envgym.errors import SettingsError, sentence
from envgym.plugins import Choice
from envgym.trainer.catalog import CREDIT, CURRICULUM, LOSS
from envgym.trainer.env_source import EnvSource
from envgym.trainer.methods.protocols import BatchCredit, Credit, CriticCredit, Curriculum
from envgym.trainer.settings import TrainSettings

AnyCredit = Credit | BatchCredit


def check_run(
    search: Strategy,
    credit: AnyCredit,
    curriculum: Curriculum,
    settings: TrainSettings,
    env_sources: Mapping[str, EnvSource],
) -> None:
    """Check that a method suits the envs, the agent and the size of groups. Raises: SettingsError: it does not."""
    check_search(search, env_sources, settings.agent, group_size=settings.rollout.group_size)
    check_group(credit, settings)
    check_start_states(curriculum, env_sources)


def check_critic_stays(before: AnyCredit, after: AnyCredit, settings: TrainSettings) -> None:
    """Check that a change of settings leaves the critic alone. Raises: SettingsError: it needs one, or one no more."""
    had_critic = isinstance(before, CriticCredit)
    if isinstance(after, CriticCredit) != had_critic:
        must = f"{'read' if had_critic else 'not read'} a critic's values, as the one before"
        do = "start a new run with it: the critic is built with the model"
        raise SettingsError.of("credit", must, settings.credit.name, where="controllers", do=do)


def check_group(credit: AnyCredit, settings: TrainSettings) -> None:
    """Check that groups can be compared. Raises: SettingsError: every advantage would be 0."""
    size, name = settings.rollout.group_size, settings.credit.name
    # Most of ours give the only episode of a group 0, and those say so that do not; one of another package need not.
    if size < 2 and name in CREDIT.table and not getattr(credit, "works_alone", False):
        must = f"be at least 2 for {name}, which compares the episodes of a group"
        raise SettingsError(sentence("rollout.group_size", must, size, where="rollout", do="raise it"))


def check_search(
    search: Strategy, env_sources: Mapping[str, EnvSource], agent: AgentSettings, *, group_size: int | None
) -> None:
    """Check that every env, the agent and the group size suit the search. Raises: SettingsError: they do not."""
    for env_source in env_sources.values():
        with closing(env_source.make()) as env:
            search.check(env, agent, group_size=group_size)


def check_start_states(curriculum: Curriculum, env_sources: Mapping[str, EnvSource]) -> None:
    """Check that episodes can go on from recorded states where the curriculum asks for it. Raises: SettingsError."""
    for env_source in env_sources.values() if getattr(curriculum, "needs_start_states", False) else ():
        with closing(env_source.make()) as env:
            resolve_branching(env, Branching.AUTO, where="curriculum")


class Fault(NamedTuple):
    """The parts of a sentence."""

    what: str
    must: str
    got: str
    do: str


Rule = Callable[[TrainSettings, AnyCredit], Fault | None]


def tree_credit_needs_branches(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """A chain has no branch to compare: what these credits read off a tree is 0 for all of it."""
    if settings.credit.name not in ("tree_grpo", "tree_po", "tree_rl", "spo") or settings.search.name != "chain":
        return None
    must = "be used with a search that grows trees, as a chain has no branches to compare"
    return Fault(
        f"credit {settings.credit.name}", must, "search chain", "set search.name=random_expand, or credit=grpo"
    )


def deep_search_needs_mcts(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """Its advantages are what the Monte Carlo search backed up on the nodes; other searches back up nothing."""
    others = ("chain", "best_of", "random_expand", "surprisal_fork", "turn_uncertainty", "planned")
    if settings.credit.name != "deep_search" or settings.search.name not in others:
        return None
    must = "be used with search mcts, which backs up the values that it uses"
    return Fault("credit deep_search", must, f"search {settings.search.name}", "set search.name=mcts")


def sibling_needs_rows_per_path(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """Its weights share a node out among the rows through it already; `once` would divide a second time."""
    if settings.credit.name != "sibling" or settings.objective.shared_tokens != "once":
        return None
    must = "be per_path with credit sibling, whose weights already account for shared tokens"
    return Fault("objective.shared_tokens", must, "once", "set objective.shared_tokens=per_path")


def planned_trains_tokens_once(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """Its weights are those of nodes; per path a node would train as often as it has leaves."""
    is_tree = settings.search.name not in ("chain", "best_of")
    is_planned = settings.credit.name in ("planned", "planned_gae")
    if not is_planned or settings.objective.shared_tokens != "per_path" or not is_tree:
        return None
    must = f"be once with credit {settings.credit.name}, whose weights are those of nodes"
    return Fault("objective.shared_tokens", must, "per_path", "set objective.shared_tokens=once")


def fitted_scale_needs_other_groups(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """What it is fitted to are the other groups of a step."""
    if getattr(credit, "beta", None) != "fitted" or settings.rollout.groups > 1:
        return None
    must = f"be at least 2 for {settings.credit.name} with beta=fitted, which is measured on the other groups"
    return Fault("rollout.groups", must, "1", "raise it, or set credit.beta=1")


def old_samples_need_a_correction(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """Samples several steps old come from another policy, and nothing weighs them."""
    is_weighed = settings.correction.name != "none" or settings.objective.old_policy == "rollout"
    if settings.rollout.staleness < 2 or is_weighed:
        return None
    must = "be at most 1 without a correction for off-policy samples"
    do = "set correction.name=tis, or objective.old_policy=rollout"
    return Fault("rollout.staleness", must, str(settings.rollout.staleness), do)


def critic_needs_all_groups(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """Tasks that always or never succeed are those whose value a critic must learn; the filter keeps them from it."""
    if settings.filter.name != "zero_variance" or not isinstance(credit, CriticCredit):
        return None
    must = "keep groups with zero reward variance for a credit with a critic, which must learn their values"
    return Fault("filter", must, "zero_variance", "set filter.name=keep_all")


def variance_needs_two_episodes(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """One episode has no variance: every group would be dropped, and nothing is ever learned."""
    is_by_variance = settings.filter.name in ("zero_variance", "top_variance")
    if settings.rollout.group_size > 1 or not is_by_variance or settings.allocator is not None:
        return None
    must = f"be at least 2 with filter {settings.filter.name}, which drops groups with zero reward variance"
    return Fault("rollout.group_size", must, "1", "raise it, or set filter.name=keep_all")


def reinforce_needs_one_epoch(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """A second pass over the rows is off-policy, and this loss has no ratio that would say so."""
    if settings.loss.name != "reinforce" or settings.optim.epochs == 1:
        return None
    must = "be 1 with loss reinforce, which has no importance ratio"
    return Fault("optim.epochs", must, str(settings.optim.epochs), "set it to 1, or loss.name=ppo_clip")


def reinforce_needs_one_minibatch(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """After the first update of a step the rows are off-policy, and this loss has no ratio that would say so."""
    if settings.loss.name != "reinforce" or settings.optim.minibatches == 1:
        return None
    must = "be 1 with loss reinforce, which has no importance ratio"
    return Fault("optim.minibatches", must, str(settings.optim.minibatches), "set it to 1, or loss.name=ppo_clip")


def reinforce_has_no_old_policy(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """The old policy stands in a ratio, and this loss has none: the setting would do nothing."""
    is_read = settings.loss.name != "reinforce" or settings.correction.name != "none" or settings.objective.terms
    if settings.objective.old_policy != "rollout" or is_read:
        return None
    must = "be recomputed with loss reinforce, which has no importance ratio"
    return Fault("objective.old_policy", must, "rollout", "set loss.name=ppo_clip, or a correction")


def value_clip_needs_several_updates(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """The clip is about how far values moved within a step; before its only update they have not."""
    clip = None if settings.critic is None else settings.critic.clip
    if clip is None or settings.optim.epochs * settings.optim.minibatches > 1:
        return None
    must = "be used with several updates per step, as values have not changed before the first"
    return Fault("critic.clip", must, "optim.epochs=1 and optim.minibatches=1", "leave it out, or raise one of them")


def dual_clip_lies_beyond_the_clip(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """A dual clip inside the range of the ratio would stop the gradient where the clip itself allows it."""
    chosen = settings.loss.settings
    high, dual = chosen.get("clip_high", 0.2), chosen.get("dual_clip")
    if settings.loss.name != "ppo_clip" or dual is None or dual > 1 + high:
        return None
    must = f"be above 1 + clip_high ({1 + high:g}), the largest ratio that the clip allows"
    return Fault("loss.dual_clip", must, f"{dual:g}", "raise it: 3 and 10 are usual")


def terms_need_their_sources(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """A term has no token where nothing brings episodes of the sources that it reads."""
    known = {Source.POLICY}
    if settings.demonstrations is not None:
        known.add(Source.DEMONSTRATION)
    if settings.allocator is not None:  # one may join episodes that it had sampled under a hint
        known.add(Source.REPLAY)
    lone = [term for term in settings.objective.terms if not known & set(term.sources)]
    if not lone or settings.replay is not None:  # one of your own may bring episodes of any source
        return None
    sources = ", ".join(lone[0].sources)
    has_replayed = Source.REPLAY in lone[0].sources
    do = "set replay.name=rlep" if has_replayed else "add the section demonstrations, or a replay that brings them"
    must = f"be used with a source of {sources} tokens"
    return Fault(f"objective term {lone[0].name}", must, "none", f"{do}, or add POLICY to its sources")


def guide_needs_its_ratio(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """Hinted episodes train in another context than they were sampled in: only their loss knows of it."""
    if settings.allocator is None or settings.allocator.name != "guide":
        return None
    if settings.loss.name != "guide":
        return Fault("loss", "be guide with allocator guide", settings.loss.name, "set loss.name=guide")
    if settings.correction.name != "none":
        must = "be none with allocator guide, because the sampler's log-probs belong to another context"
        return Fault("correction", must, settings.correction.name, "set correction.name=none")
    return None


def _losses(settings: TrainSettings) -> list[Choice]:
    return [settings.loss, *(term.loss for term in settings.objective.terms)]


def states_need_their_prompts(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """A loss that reads states under other prompts has nothing to compare where no tree keeps such a prompt."""
    name, chosen = settings.curriculum.name, settings.curriculum.settings
    kept = {
        "reworded": chosen.get("prompts"),
        "hinted": [chosen.get("keep_as")],
        "skill_bank": [chosen.get("prompt", "skill")],
    }
    known = [str(prompt) for prompt in kept.get(name) or () if prompt is not None]
    for choice in _losses(settings):
        loss = LOSS.build(choice)
        missing = [prompt for prompt in getattr(loss, "state_prompts", ()) if prompt not in known]
        if missing and name in CURRICULUM.table:
            must = f"be used with a curriculum that renders its prompt {missing[0]}"
            got = f"{name} with {', '.join(known) or 'none'}"
            do = f"set curriculum.name=reworded and curriculum.prompts.{missing[0]}, or name those in its prompts"
            return Fault(f"loss {choice.name}", must, got, do)
    return None


def contrastive_needs_two_tasks(settings: TrainSettings, credit: AnyCredit) -> Fault | None:
    """It pushes the states of different tasks apart; an update with one task has none."""
    groups, minibatches = settings.rollout.groups, settings.optim.minibatches
    if groups >= 2 * minibatches or all(loss.name != "contrastive" for loss in _losses(settings)):
        return None
    must = "be at least 2 for each minibatch with loss contrastive, which compares tasks"
    return Fault("rollout.groups", must, f"{groups} for {minibatches}", "raise it, or lower optim.minibatches")


RULES: Final[tuple[Rule, ...]] = (
    tree_credit_needs_branches,
    guide_needs_its_ratio,
    deep_search_needs_mcts,
    sibling_needs_rows_per_path,
    planned_trains_tokens_once,
    fitted_scale_needs_other_groups,
    old_samples_need_a_correction,
    critic_needs_all_groups,
    variance_needs_two_episodes,
    reinforce_needs_one_epoch,
    reinforce_needs_one_minibatch,
    reinforce_has_no_old_policy,
    value_clip_needs_several_updates,
    dual_clip_lies_beyond_the_clip,
    terms_need_their_sources,
    states_need_their_prompts,
    contrastive_needs_two_tasks,
)
"""Each returns what is wrong with a run's choices; None: nothing that it knows of."""


def check_combination(settings: TrainSettings, credit: AnyCredit) -> None:
    """Check that a run's choices work together. Raises: SettingsError: the first rule that they break."""
    for rule in RULES:
        fault = rule(settings, credit)
        if fault is not None:
            raise SettingsError.of(fault.what, fault.must, fault.got, where="settings", do=fault.do)
