"""The engine under every strategy: forks and replays agree, a failure stays in its branch, nothing is left open."""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envgym
from envgym import Action, Ending, ForkCapability, Reply, Split, Task
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.search import (
    Beam,
    BestOf,
    Chain,
    Mcts,
    PlannedTrees,
    RandomExpand,
    RolloutContext,
    Strategy,
    SurprisalFork,
    TurnUncertainty,
)
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.protocol import TreeStrategy
from envgym.agents.search.snapshots import Branching
from envgym.config.plugins import Choice
from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Cost
from envgym.errors import InvalidInput, SettingsError
from tests.agents.search.growing import Babbler, GrownGroup, answer, ended, episodes, grow, grow_group
from tests.support.lanes import env_params
from tests.support.parrots import CALL, Parrot, char_agent, parrot_job, said
from tests.support.plugins import STRATEGIES

WORDS = ("50", "up", "7", CALL, "look", "hello", "right", "12", "<answer>3</answer>", "down")


def wordy(request: GenerateRequest) -> tuple[int, ...]:
    return said(WORDS[request.seed % len(WORDS)])


def without_stats(trees: Sequence[Tree]) -> list[Tree]:
    return [replace(tree, nodes=tuple(replace(node, stats=None) for node in tree.nodes)) for tree in trees]


@pytest.mark.parametrize("env_id", env_params(envgym.list_ids()))
def test_forks_and_replays_grow_the_same_trees_on_every_env_that_copies_its_state(env_id: str) -> None:
    try:
        env = envgym.make(env_id)
    except InvalidInput as error:  # its package or its data is not there
        pytest.skip(str(error))
    if env.unwrapped.fork_capability is not ForkCapability.STATE:
        env.close()
        pytest.skip("its state is not copied")
    tasks = env.unwrapped.tasks
    task = tasks.task(Split.TEST if tasks.size(Split.TRAIN) == 0 else Split.TRAIN, 1)
    env.close()
    job = EpisodeJob(make_env=lambda: envgym.make(env_id, max_turns=4), task=task, seed=5, tree_id="g", env_id=env_id)
    agent, grown = char_agent(text_format="hermes"), []
    for branching in (Branching.FORK, Branching.REPLAY):
        strategy = RandomExpand(trees=2, nodes=2, rounds=2, branching=branching)
        grown.append(grow(strategy, ScriptedPolicy(wordy), job=job, agent=agent, group_size=10))
    forked, replayed = grown
    assert without_stats(forked.trees) == without_stats(replayed.trees)
    assert all(len(tree.leaves) == 5 for tree in forked.trees)
    assert replayed.spent.env_steps >= forked.spent.env_steps
    roots = [tree.nodes[0].stats for tree in replayed.trees]
    assert sum((stats.spent for stats in roots if stats is not None), Cost()) == replayed.spent


class Counted(Parrot):
    """Counts the parrots that are alive."""

    alive = 0

    def __init__(self, *, max_turns: int | None = 4) -> None:
        super().__init__(max_turns=max_turns)
        type(self).alive += 1

    def fork(self) -> "Counted":
        type(self).alive += 1
        return super().fork()

    def close(self) -> None:
        type(self).alive -= 1


class Slow(Counted):
    blocking = True


STRATEGIES_MADE = [
    RandomExpand(nodes=3, rounds=2),
    SurprisalFork(nodes=2, branches=2),
    TurnUncertainty(nodes=3, rounds=2),
    BestOf(n=4),
    Mcts(simulations=6),
    Mcts(simulations=8, value=Choice(name="tests.agents.search.test_mcts:Climber")),
]
PLANNED = PlannedTrees(children=(2,), last_turn=2)
"""Its trees have as many leaves as its plan says, also where a budget is left."""
BEAM = Beam(value=Choice(name="tests.agents.search.test_mcts:Climber"))
"""Grows no groups, but answers."""


def endless(place: int, **fields: object) -> TreeStrategy:
    strategy = STRATEGIES_MADE[place]
    count = {"best_of": "n", "mcts": "simulations"}.get(strategy.name, "rounds")
    return strategy.model_copy(update={count: None, **fields})


@pytest.mark.parametrize("kind", [Counted, Slow])
@pytest.mark.parametrize("branching", [Branching.FORK, Branching.REPLAY])
@pytest.mark.parametrize("strategy", [*STRATEGIES_MADE, PLANNED], ids=lambda strategy: f"{strategy.name}")
def test_no_env_is_left_open(strategy: TreeStrategy, branching: Branching, kind: type[Counted]) -> None:
    kind.alive = 0
    grow(strategy.model_copy(update={"branching": branching}), make_env=kind, group_size=4)
    assert kind.alive == 0


@pytest.mark.parametrize("kind", [Counted, Slow])
@pytest.mark.parametrize("branching", [Branching.FORK, Branching.REPLAY])
def test_no_env_of_a_beam_is_left_open(branching: Branching, kind: type[Counted]) -> None:
    kind.alive = 0
    tree = answer(BEAM.model_copy(update={"branching": branching}), Babbler("abc"), make_env=kind)
    assert len(trajectories(tree)) == 1
    assert kind.alive == 0


def test_cancelled_search_leaves_no_env_open() -> None:
    Counted.alive = 0

    class Stuck(Babbler):
        async def generate(self, request: GenerateRequest) -> Generation:
            if len(self.requests) > 6:
                await asyncio.Event().wait()
            return await super().generate(request)

    async def work() -> None:
        context = RolloutContext(agent=char_agent(), policy=Stuck(), sampling=Sampling(), slots=asyncio.Semaphore(9))
        async with asyncio.timeout(0.2):
            await grow_group(RandomExpand(nodes=3, rounds=2), parrot_job(Counted), context, group_size=7)

    with pytest.raises(TimeoutError):
        asyncio.run(work())
    assert Counted.alive == 0


# ---- aborts ---------------------------------------------------------------------------------------------------------


class Aborting(Babbler):
    """Answers so many requests; then the search is aborted, and no request is answered any more."""

    def __init__(self, abort: AbortHandle, *, after: int) -> None:
        super().__init__("abc", end=0.2)
        self.abort, self.num_left, self.num_open, self.num_sampled = abort, after, 0, 0

    async def generate(self, request: GenerateRequest) -> Generation:
        self.num_left -= 1
        if self.num_left < 0:
            self.num_open += 1
            asyncio.get_running_loop().call_later(0.01, self.abort.abort, "too slow")
            await asyncio.Event().wait()
        generation = await super().generate(request)
        self.num_sampled += len(generation.token_ids)
        return generation


def all_closed(kind: type[Counted]) -> bool:
    """Wait for the threads of abandoned envs."""
    deadline = time.monotonic() + 60
    while kind.alive and time.monotonic() < deadline:
        time.sleep(0.001)
    return kind.alive == 0


@pytest.mark.parametrize("kind, slots", [(Counted, 64), (Counted, 1), (Slow, 64), (Slow, 2)])
@pytest.mark.parametrize("after", [0, 3, 8])
@pytest.mark.parametrize("strategy", [Chain(), *STRATEGIES_MADE], ids=lambda strategy: type(strategy).__name__)
def test_abort_ends_branches_and_keeps_others(strategy: Strategy, after: int, kind: type[Counted], slots: int) -> None:
    kind.alive = 0
    abort = AbortHandle()
    policy = Aborting(abort, after=after)
    trees = grow(strategy, policy, make_env=kind, group_size=4, slots=slots, abort=abort).trees
    leaves = [node for tree in trees for node in tree.nodes if node.ending is not None]
    aborted = [node for node in leaves if node.ending is Ending.ERROR_ABORTED]
    assert len(aborted) >= policy.num_open > 0
    assert {node.error for node in aborted} == {"too slow"}
    assert not any(node.ending.is_error for node in leaves if node.ending and node not in aborted)
    assert sum(tree.cost.tokens_generated for tree in trees) == policy.num_sampled, "all that was sampled is kept"
    assert all_closed(kind)
    for tree in trees:
        assert tree_from_json(tree_to_json(tree)) == tree


@pytest.mark.parametrize("method", ["respond", "fork"])
def test_an_env_that_hangs_does_not_hold_up_an_aborted_tree(method: str) -> None:
    wakes = threading.Event()
    abort = AbortHandle()

    class Hanging(Slow):
        def respond(self, action: Action) -> Reply:
            if method == "respond" and self.state.heard:
                wakes.wait(60)
            return super().respond(action)

        def fork(self) -> "Hanging":
            if method == "fork" and self.state.heard:
                wakes.wait(60)
            return super().fork()  # type: ignore[return-value]  # a copy is of the same class

    async def work() -> GrownGroup:
        asyncio.get_running_loop().call_later(0.1, abort.abort, "hangs")
        context = RolloutContext(agent=char_agent(), policy=Babbler(), sampling=Sampling(), slots=asyncio.Semaphore(9))
        growing = grow_group(RandomExpand(nodes=3), parrot_job(Hanging), context, group_size=4, abort=abort)
        return await asyncio.wait_for(growing, 10)

    Hanging.alive = 0
    (tree,) = asyncio.run(work()).trees
    assert {tree.nodes[leaf].ending for leaf in tree.leaves} == {Ending.ERROR_ABORTED}
    wakes.set()
    assert all_closed(Hanging)


def test_a_cancellation_from_outside_is_no_abort() -> None:
    abort = AbortHandle()
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(stuck(abort), 0.1))
    assert abort.reason is None


async def stuck(abort: AbortHandle) -> None:
    policy = Aborting(AbortHandle(), after=5)
    context = RolloutContext(agent=char_agent(), policy=policy, sampling=Sampling(), slots=asyncio.Semaphore(9))
    await grow_group(RandomExpand(nodes=3), parrot_job(Counted), context, group_size=4, abort=abort)


# ---- failures -------------------------------------------------------------------------------------------------------


class Moody(Parrot):
    """Answers with a number that no seed repeats."""

    fork_capability = ForkCapability.REPLAY
    asked = 0

    def respond(self, action: Action) -> Reply:
        type(self).asked += 1
        return Reply(observation=f"{self.asked}", reward=0.25)


def test_replay_that_differs_is_a_broken_branch_of_a_tree_that_survives() -> None:
    grown = grow(RandomExpand(trees=1, nodes=4, rounds=1), make_env=lambda: Moody(max_turns=4), group_size=5)
    (tree,) = grown.trees
    broken = [tree.nodes[leaf] for leaf in tree.leaves if tree.nodes[leaf].ending is Ending.ERROR_ENV]
    # Four places: the root, which is only reset, and three whose turns do not repeat.
    assert len(tree.leaves) == 5
    assert len(broken) == 3
    assert all("of the replay must equal '" in (node.error or "") for node in broken)
    assert all(not node.edge.segments and node.parent != 0 for node in broken)
    assert sum(episode.is_valid for episode in trajectories(tree)) == 2


class Sealed(Parrot):
    fork_capability = ForkCapability.NONE


@pytest.mark.parametrize("strategy", [RandomExpand(), SurprisalFork(), Mcts()], ids=lambda strategy: f"{strategy.name}")
def test_env_without_forks_is_refused_in_a_sentence(strategy: TreeStrategy) -> None:
    words = "env must declare fork capability state or replay, got Sealed with none"
    with pytest.raises(SettingsError, match=words):
        strategy.check(Sealed(), char_agent().settings, group_size=6)
    with pytest.raises(SettingsError, match=words):
        grow(strategy, make_env=Sealed)
    assert len(episodes(grow(BestOf(n=6), make_env=lambda: Sealed(max_turns=4)).trees)) == 6


def test_copies_are_not_made_of_an_env_that_only_replays() -> None:
    with pytest.raises(SettingsError, match="branching=fork must be used with an env that copies its state"):
        RandomExpand(branching=Branching.FORK).check(Moody(), char_agent().settings, group_size=6)


class Unborn(Parrot):
    def begin(self, task: Task) -> str:
        raise RuntimeError("no egg")


def test_tree_that_could_not_begin_is_one_broken_leaf() -> None:
    for strategy in STRATEGIES_MADE:
        grown = grow(strategy, make_env=Unborn, group_size=4)
        assert {episode.ending for episode in episodes(grown.trees)} == {Ending.ERROR_ENV}


def test_trees_come_back_from_json() -> None:
    for strategy in (*STRATEGIES_MADE, PLANNED):
        for tree in grow(strategy, group_size=4).trees:
            assert tree_from_json(tree_to_json(tree)) == tree


def test_every_strategy_is_in_the_table_under_its_name() -> None:
    assert {strategy.name for strategy in (*STRATEGIES_MADE, PLANNED, BEAM)} | {"chain"} == set(STRATEGIES)


@settings(max_examples=40)
@given(
    place=st.integers(0, len(STRATEGIES_MADE) - 1), tokens=st.integers(12, 150), steps=st.integers(1, 40),
    deterministic=st.booleans(), pace=st.integers(0, 3), slots=st.sampled_from([1, 2, 64]), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_budget_is_exceeded_by_less_than_one_turn(
    place: int, tokens: int, steps: int, deterministic: bool, pace: int, slots: int, seed: int
) -> None:
    budget = SearchBudget(tokens_generated=tokens, env_steps=steps)
    strategy = endless(place, budget=budget, deterministic=deterministic)
    if isinstance(strategy, Mcts):
        strategy = strategy.model_copy(update={"width": 99})
    grown = grow(strategy, Babbler("abc", end=0.2, pace=pace), group_size=3, slots=slots, seed=seed)
    share = budget.share(strategy.num_trees(3))
    for tree in grown.trees:
        assert tree.cost.tokens_generated < (share.tokens_generated or 0) + 12
        assert tree.cost.env_steps <= (share.env_steps or 0)
        assert ended(tree)


@pytest.mark.parametrize(
    "budget", [SearchBudget(tokens_prefilled=300), SearchBudget(tokens_generated=90), SearchBudget(env_steps=9)]
)
def test_replays_are_paid_for(budget: SearchBudget) -> None:
    strategy = RandomExpand(trees=1, rounds=None, nodes=3, budget=budget, branching=Branching.REPLAY)
    grown = grow(strategy, group_size=4)
    assert grown.spent.env_steps > sum(tree.cost.env_steps for tree in grown.trees)
    assert budget.is_spent(grown.spent)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("place", range(len(STRATEGIES_MADE)))
def test_search_that_spends_nothing_of_its_budget_ends(place: int, deterministic: bool) -> None:
    grown = grow(endless(place, budget=SearchBudget(tool_calls=1), deterministic=deterministic), group_size=3)
    assert grown.spent.tool_calls == 0
    assert ended(grown.trees[0])
