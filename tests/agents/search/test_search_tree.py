"""One tree while it grows: its states, the seeds of its branches, what it counts, and why it stops."""

import asyncio
from collections.abc import Awaitable, Callable

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import Sampling
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.search import RolloutContext
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.engine import OUT_OF_BUDGET, SearchTree
from envgym.agents.search.snapshots import Branching
from envgym.core.turns import Cost, Ending
from envgym.seeds import derive_seed
from tests.support.parrots import Parrot, char_agent, parrot_job, said

NO_BUDGET = SearchBudget()


def grown(
    work: Callable[[SearchTree], Awaitable[None]],
    *,
    branching: Branching | None = Branching.FORK,
    budget: SearchBudget = NO_BUDGET,
    abort: AbortHandle | None = None,
) -> SearchTree:
    """Begin a tree over a parrot that ends after three turns, let `work` grow it, and close it."""

    async def grow() -> SearchTree:
        policy = ScriptedPolicy(lambda request: said(chr(ord("a") + request.seed % 26)))
        context = RolloutContext(
            agent=char_agent(), policy=policy, sampling=Sampling(), slots=asyncio.Semaphore(4), clock=lambda: 0.0
        )
        job = parrot_job(lambda: Parrot(max_turns=3), seed=7)
        tree = SearchTree(job, context, branching=branching, budget=budget, abort=abort)
        await tree.begin()
        await work(tree)
        await tree.close()
        return tree

    return asyncio.run(grow())


async def one_episode(tree: SearchTree) -> None:
    assert tree.root is not None
    await tree.run(tree.add_branch(tree.root))


def test_an_episode_leaves_a_state_before_each_of_its_turns() -> None:
    tree = grown(one_episode)
    (branch,) = tree.branches
    assert [turn.start for turn in branch.turns] == tree.states
    assert [turn.end for turn in branch.turns] == [*tree.states[1:], None]
    assert tree.states[0] is tree.root
    # The episode that reached a state continues from it.
    assert [tree.num_branches(state) for state in tree.states] == [1, 1, 1]
    assert tree.num_branches(None) == 0
    assert [state.agent.num_turns for state in tree.states] == [0, 1, 2]


def test_branches_of_a_state_are_counted_and_only_the_first_has_the_episodes_seed() -> None:
    async def work(tree: SearchTree) -> None:
        await one_episode(tree)
        root, second, _ = tree.states
        for state in (root, root, second):
            await tree.run(tree.add_branch(state))

    tree = grown(work)
    root, second, *_ = tree.states
    assert [tree.num_branches(root), tree.num_branches(second)] == [3, 2]
    seed = root.agent.episode.seed
    assert [branch.seed for branch in tree.branches] == [
        seed,
        derive_seed(seed, "branch", 0, 1),
        derive_seed(seed, "branch", 0, 2),
        derive_seed(seed, "branch", 1, 1),
    ]
    assert [branch.number for branch in tree.branches] == [0, 1, 2, 3]
    # Three turns of three steps each, and two of the branch that begins before the second turn.
    assert [len(branch.turns) for branch in tree.branches] == [3, 3, 3, 2]
    assert tree.tracker.spent.env_steps == 11
    assert len(tree.record().leaves) == 4


def test_a_branch_may_stop_after_some_turns_and_another_go_on_from_there() -> None:
    async def work(tree: SearchTree) -> None:
        assert tree.root is not None
        branch = await tree.run(tree.add_branch(tree.root), num_turns=2)
        assert (len(branch.turns), branch.is_finished) == (2, False)
        assert tree.num_branches(branch.state) == 0  # nobody continues from where it stopped
        await tree.run(tree.add_branch(branch.state))

    tree = grown(work)
    first, second = tree.branches
    assert second.seed == first.seed
    assert second.ending is Ending.TRUNCATED_TURNS
    assert tree.finished_branches == [second]
    second.pruned = "why not"
    assert (tree.finished_branches, tree.kept_branches) == ([second], [])


def test_replays_cost_the_turns_before_and_forks_nothing() -> None:
    async def work(tree: SearchTree) -> None:
        await one_episode(tree)
        await tree.run(tree.add_branch(tree.states[2]))

    for branching, replayed in ((Branching.FORK, 0), (Branching.REPLAY, 2)):
        tree = grown(work, branching=branching)
        assert tree.branches[1].replay_cost.env_steps == replayed
        assert tree.tracker.spent.env_steps == 3 + replayed + 1
    # Without forks or replays a branch can begin at the root alone.
    assert [state.agent.num_turns for state in grown(one_episode, branching=None).states] == [0]


def test_a_tree_stops_where_its_budget_is_spent() -> None:
    async def work(tree: SearchTree) -> None:
        await one_episode(tree)
        assert (tree.is_stopped, tree.stop_reason) == (False, None)
        for _ in range(2):
            assert tree.root is not None
            await tree.run(tree.add_branch(tree.root))

    tree = grown(work, budget=SearchBudget(env_steps=5))
    assert (tree.is_stopped, tree.stop_reason) == (True, OUT_OF_BUDGET)
    first, cut, never = tree.branches
    assert [branch.ending for branch in tree.branches] == [Ending.TRUNCATED_TURNS, Ending.TRUNCATED_BUDGET, None]
    assert cut.last_node is not None
    assert (len(first.turns), cut.last_node.error) == (3, None)
    assert (never.turns, never.pruned) == ([], OUT_OF_BUDGET)
    assert tree.tracker.spent == Cost(
        tokens_generated=2 * 5, tokens_prefilled=tree.tracker.spent.tokens_prefilled, env_steps=5
    )  # fmt: skip


def test_an_abort_is_the_reason_whatever_was_spent() -> None:
    abort = AbortHandle()

    async def work(tree: SearchTree) -> None:
        await one_episode(tree)
        abort.abort("too slow")

    tree = grown(work, budget=SearchBudget(env_steps=3), abort=abort)
    assert (tree.stop_reason, tree.is_stopped) == ("too slow", True)
