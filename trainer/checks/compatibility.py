"""Choices that cannot work together, or that do nothing, are refused before a run begins.

A plug-in states what it requires (`methods.requirements`). The rules here read sections and what plug-ins declare.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Final

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.search import Strategy
from envgym.agents.search.snapshots import Branching, resolve_branching
from envgym.core.segments import Origin
from envgym.core.tree import Source
from envgym.errors import SettingsError, check_known
from envgym.trainer.env_source import EnvSource
from envgym.trainer.methods.losses.base import is_corrected
from envgym.trainer.methods.protocols import BatchCredit, Credit, CriticCredit, Curriculum
from envgym.trainer.methods.requirements import Choices, Fault, GroupPlugins, Requires
from envgym.trainer.methods.scores import POLICY_MODEL, ScoreRequest

_log = logging.getLogger(__name__)


def check_run(method: GroupPlugins, env_sources: Mapping[str, EnvSource], agent: AgentSettings, size: int) -> None:
    """Check that a method suits the envs, the agent and the size of groups. Raises: SettingsError: it does not."""
    check_search(method.search, env_sources, agent, group_size=size)
    for point in ("curriculum", "allocator"):
        check_program(getattr(method, point), agent, where=point)
        check_start_states(getattr(method, point), env_sources, where=point)
    check_skills(method.curriculum, env_sources)


def check_critic_stays(before: Credit | BatchCredit, after: Credit | BatchCredit, name: str) -> None:
    """Check that a change of settings leaves the critic alone. Raises: SettingsError: it needs one, or one no more."""
    had_critic = isinstance(before, CriticCredit)
    if isinstance(after, CriticCredit) != had_critic:
        must = f"{'read' if had_critic else 'not read'} a critic's values, as the one before"
        do = "start a new run with it: the critic is built with the model"
        raise SettingsError.of("credit", must, name, where="controllers", do=do)


def check_search(
    search: Strategy, env_sources: Mapping[str, EnvSource], agent: AgentSettings, *, group_size: int | None
) -> None:
    """Check that every env, the agent and the group size suit the search. Raises: SettingsError: they do not."""
    for env_source in env_sources.values():
        with closing(env_source.make()) as env:
            search.check(env, agent, group_size=group_size)


def check_start_states(method: object, env_sources: Mapping[str, EnvSource], *, where: str) -> None:
    """Check that episodes can go on from recorded states where a method asks for it. Raises: SettingsError."""
    for env_source in env_sources.values() if getattr(method, "needs_start_states", False) else ():
        with closing(env_source.make()) as env:
            resolve_branching(env, Branching.AUTO, where=where)


def check_program(method: object, agent: AgentSettings, *, where: str) -> None:
    """Check that a method leaves prompts and start states to a program, if there is one. Raises: SettingsError."""
    changes = {
        "start states": getattr(method, "needs_start_states", False),
        "hints": getattr(method, "fixed_prompts", ()),
        "other prompts": getattr(method, "tree_prompts", ()),
    }
    changed = [name for name, is_changed in changes.items() if is_changed]
    if agent.program is not None and changed:
        must = "leave prompts and start states as they are with agent.program, which writes its own messages"
        raise SettingsError.of(
            where, must, f"one with {' and '.join(changed)}", where="settings", do="choose another one"
        )


def check_skills(curriculum: Curriculum, env_sources: Mapping[str, EnvSource]) -> None:
    """Check that the skills of a curriculum are for envs of the run. Raises: UnknownName: one names another env."""
    for skill in getattr(curriculum, "skills", ()):
        for env in getattr(skill, "envs", ()):
            check_known("env", env, list(env_sources), where=f"curriculum, skill {skill.name}")


def allocator_needs_room(choices: Choices) -> Fault | None:
    """At the largest size no group is extended."""
    size, most = choices.rollout.group_size, choices.rollout.max_group_size
    must = f"be above rollout.group_size ({size}) with an allocator, which adds episodes up to it"
    return Fault.unless(choices.allocator is None or most > size, "rollout.max_group_size", must, most, "raise it")


def fitted_scale_needs_other_groups(choices: Choices) -> Fault | None:
    """A scale of a credit's baseline that is fitted is measured on the other groups of a step."""
    holds = getattr(choices.credit, "beta", None) != "fitted" or choices.rollout.groups > 1
    must = f"be at least 2 for {choices.names['credit']} with beta=fitted, which is measured on the other groups"
    return Fault.unless(holds, "rollout.groups", must, 1, "raise it, or set credit.beta=1")


def old_samples_need_a_correction(choices: Choices) -> Fault | None:
    """Samples several steps old come from another policy, and nothing weighs them."""
    staleness, must = choices.rollout.staleness, "be at most 1 without a correction for off-policy samples"
    is_weighed = not choices.correction.is_identity or choices.objective.old_policy == "rollout"
    do = f"set {'correction.name=tis, or ' if is_corrected(choices.loss) else ''}objective.old_policy=rollout"
    return Fault.unless(staleness < 2 or is_weighed, "rollout.staleness", must, staleness, do)


def value_clip_needs_several_updates(choices: Choices) -> Fault | None:
    """The clip is about how far values moved within a step; before its only update they have not."""
    clip = None if choices.critic is None else choices.critic.clip
    holds = clip is None or choices.optim.epochs * choices.optim.minibatches > 1
    must = "be used with several updates per step, as values have not changed before the first"
    got, do = "optim.epochs=1 and optim.minibatches=1", "leave it out, or raise one of them"
    return Fault.unless(holds, "critic.clip", must, got, do)


def terms_need_their_sources(choices: Choices) -> Fault | None:
    """A term has no token where nothing brings episodes of the sources that it reads."""
    available = {Source.POLICY}
    if choices.demonstrations is not None:
        available.add(Source.DEMONSTRATION)
    if choices.allocator is not None:  # one may join episodes that it had sampled under a hint
        available.add(Source.REPLAY)
    lone = [term for term in choices.terms if not available & set(term.sources)]
    if not lone or choices.replay is not None:  # one of your own may bring episodes of any source
        return None
    has_replayed = Source.REPLAY in lone[0].sources
    do = "set replay.name=rlep" if has_replayed else "add the section demonstrations, or a replay that brings them"
    must = f"be used with a source of {', '.join(lone[0].sources)} tokens"
    return Fault(lone[0].title, must, "none", f"{do}, or add POLICY to its sources")


def prefixes_need_demonstrations(choices: Choices) -> Fault | None:
    """Only episodes that go on from a demonstration hold both tokens of one and sampled tokens."""
    plugins = (choices.curriculum, choices.allocator, choices.replay)
    lone = [term.title for term in choices.terms if term.origins == {Origin.DEMONSTRATION}]
    if not lone or any(getattr(plugin, "starts_in_demonstrations", plugin is not None) for plugin in plugins):
        return None
    must = "be used with a method that starts episodes inside demonstrations, for its origins [DEMONSTRATION]"
    do = "set allocator={name: prefix_rft, run: runs/first}; whole demonstrations are sources=[DEMONSTRATION]"
    return Fault(lone[0], must, "none", do)


def prompts_are_kept(choices: Choices) -> Fault | None:
    """Where no tree keeps another prompt, states and scores under it have nothing to be compared with."""
    tree_prompts = choices.tree_prompts
    if tree_prompts is None:
        return None
    got = f"{choices.names['curriculum']} with {', '.join(tree_prompts) or 'none'}"
    for reader, plugin in choices.readers:
        states: Sequence[str] = getattr(plugin, "state_prompts", ())
        scores: Sequence[ScoreRequest] = getattr(plugin, "scores", ())
        # Another model is a teacher under the same context, too.
        read = [score.prompt for score in scores if score.model == POLICY_MODEL or score.without_prompt == "refuse"]
        rendered = "set curriculum.name=reworded and curriculum.prompts.{0}, or name those in its prompts"
        hinted = "set curriculum={{name: hinted, keep_as: {0}}}, skill_bank, or another prompt"
        for prompts, verb, do in ((states, "renders", rendered), (read, "keeps", hinted)):
            for prompt in (prompt for prompt in prompts if prompt not in (None, *tree_prompts)):
                must = f"be used with a curriculum that {verb} its prompt {prompt}"
                return Fault(reader, must, got, do.format(prompt))
    return None


def groups_are_compared(choices: Choices) -> Fault | None:
    """A credit that compares the episodes of a group gives the only episode of one an advantage of 0."""
    size, works_alone = choices.rollout.group_size, getattr(choices.credit, "works_alone", True)
    must = f"be at least 2 for {choices.names['credit']}, which compares the episodes of a group"
    return Fault.unless(size > 1 or works_alone, "rollout.group_size", must, size, "raise it")


RULES: Final[tuple[Callable[[Choices], Fault | None], ...]] = (
    allocator_needs_room,
    fitted_scale_needs_other_groups,
    old_samples_need_a_correction,
    value_clip_needs_several_updates,
    terms_need_their_sources,
    prefixes_need_demonstrations,
    prompts_are_kept,
    groups_are_compared,
)


def check_choices(choices: Choices, plugins: Iterable[object]) -> None:
    """Check what the plug-ins of a run require, then the rules. Raises: SettingsError: the first that does not hold."""
    for requirement in (*(plugin.requires for plugin in plugins if isinstance(plugin, Requires)), *RULES):
        if (fault := requirement(choices)) is not None:
            raise SettingsError.of(fault.what, fault.must, fault.got, where="settings", do=fault.do)


def warn_of_program_turns(credit: object, name: str, agent: AgentSettings) -> None:
    """Log that a credit of turns meets a program, whose conversations follow one another in an episode."""
    if agent.program is not None and getattr(credit, "reads_turn_order", False):
        text = (
            "credit %s reads the turns of an episode in their order, and agent.program may play several conversations"
        )
        _log.warning("%s one after another; a credit of whole episodes does not depend on it", text % name)


def warn_of_other_rewards(choices: Choices) -> None:
    """Log choices by which groups or baselines depend on other rewards than a reader may expect."""
    credit, shaping = choices.credit, choices.shaping
    if getattr(choices.filter, "drops_equal_rewards", False) and getattr(credit, "trains_equal_rewards", False):
        text = "filter %s drops groups of equal rewards, which credit %s would train: consider filter.name=keep_all"
        _log.warning(text, choices.names["filter"], choices.names["credit"])
    is_shaped = not getattr(shaping, "is_identity", False)
    if getattr(credit, "reads_draws", False) and choices.allocator is not None and is_shaped:
        text = "credit %s subtracts the success rate of the env's rewards from successes after shaping %s"
        _log.warning(text, choices.names["credit"], choices.names["shaping"])
