"""Monte Carlo tree search: visits, values, what leads it, and what its answer may be called."""

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym import Action, Ending, Reply, Role, Scored
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest
from envgym.agents.search import Mcts
from envgym.agents.search.branches import UNFINISHED
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.engine import OUT_OF_BUDGET
from envgym.agents.search.mcts_tree import MAX_REPEATS, MERGED
from envgym.agents.search.protocol import NO_FURTHER_EPISODE
from envgym.agents.search.scorers import SearchObservation
from envgym.config.plugins import Choice
from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.trajectory import Group, Trajectory, trajectories
from envgym.core.tree import SearchStats, Tree
from envgym.errors import SettingsError, UnknownName
from envgym.trainer.metrics.rollout import rollout_metrics
from tests.agents.search.growing import Babbler, answer, ended, grow
from tests.support.parrots import END, Parrot, char_agent, said


class Ladder(Parrot):
    """Three turns; pays 1 at the end where every turn said `b` first."""

    def __init__(self) -> None:
        super().__init__(max_turns=3)

    def respond(self, action: Action) -> Reply:
        self.state.heard += action.content.startswith("b")
        return Reply(observation="?", reward=float(self.state.heard == 3))


class Climber:
    """Knows the way: a third for every turn of the agent that began with b."""

    async def __call__(self, seen: Sequence[SearchObservation]) -> list[float]:
        said = [[message for message in item.messages if message.role is Role.ASSISTANT] for item in seen]
        return [sum(message.content.startswith("b") for message in one) / 3 for one in said]


CLIMBER = f"{__name__}:Climber"


def stats_of(tree: Tree) -> list[SearchStats]:
    return [node.stats for node in tree.nodes if node.stats is not None]


@settings(max_examples=12)
@given(
    simulations=st.integers(1, 20), parallel=st.integers(1, 5), seed=st.integers(0, 99), frontier=st.booleans(),
    rule=st.sampled_from(["uct", "puct"]),
)  # fmt: skip
def test_simulations_visit_the_root(simulations: int, parallel: int, seed: int, frontier: bool, rule: str) -> None:
    strategy = Mcts.model_validate(
        {
            "simulations": simulations,
            "parallel": parallel,
            "frontier": frontier,
            "rule": rule,
            "width": 9,
            "widening": 1,
        }
    )
    tree = answer(strategy, Babbler("ab"), make_env=Ladder, seed=seed)
    assert tree.nodes[0].stats is not None
    assert tree.nodes[0].stats.visits == simulations
    assert len(ended(tree)) == simulations
    assert len(tree.leaves) == 1
    rewards = [reward.value for leaf in ended(tree) if isinstance(reward := reward_at(tree, leaf), Scored)]
    assert tree.nodes[0].stats.value == pytest.approx(sum(rewards) / len(rewards))


def reward_at(tree: Tree, leaf: int) -> object:
    return Trajectory(tree=tree, leaf=leaf).reward


def test_equal_children_are_one_child_with_several_visits() -> None:
    tree = answer(Mcts(simulations=6, widening=1.0), Babbler("a", end=1 - 1e-9), make_env=Ladder)
    assert [stats.visits for stats in stats_of(tree)][:4] == [6, 6, 6, 6]
    assert [stats.pruned for stats in stats_of(tree) if stats.pruned] == [MERGED] * 5


class Fork(Ladder):
    """Two turns; pays 1 for a b in the first."""

    def respond(self, action: Action) -> Reply:
        self.state.heard += 1
        return Reply(observation="?", reward=float(action.content == "b"), terminated=self.state.heard == 2)


def wanders(request: GenerateRequest) -> tuple[int, ...]:
    return said("ab"[request.seed % 2] if request.token_ids.count(END) == 1 else chr(ord("c") + request.seed % 20))


def ends_often(request: GenerateRequest) -> tuple[int, ...]:
    """Say one of two letters that go on, or with probability 0.7 one of six that end the episode."""
    draw = request.seed % 100
    return said("ab"[draw % 2] if draw < 30 else "cdefgh"[draw % 6])


class Short(Ladder):
    def respond(self, action: Action) -> Reply:
        return Reply(observation="?", reward=float(action.content == "c"), terminated=action.content not in "ab")


@pytest.mark.parametrize("deterministic", [True, False])
def test_group_has_its_size_where_many_leaves_repeat_earlier_ones(deterministic: bool) -> None:
    num_merged = 0
    for seed in range(6):
        (tree,) = grow(
            Mcts(simulations=8, rule="uct", frontier=True, deterministic=deterministic),
            ScriptedPolicy(ends_often),
            make_env=Short,
            group_size=8,
            agent=char_agent(),
            seed=seed,
        ).trees
        assert len(trajectories(tree)) == 8
        assert tree.nodes[0].stats is not None
        assert tree.nodes[0].stats.shortfall is None
        num_merged += sum(stats.pruned == MERGED for stats in stats_of(tree))
    assert num_merged > 6


def test_group_of_a_policy_that_repeats_itself_is_short_for_a_recorded_reason() -> None:
    policy = ScriptedPolicy(lambda request: said("b"))
    (tree,) = grow(Mcts(simulations=2), policy, make_env=Ladder, group_size=4, agent=char_agent()).trees
    assert len(tree.leaves) == 1
    assert len(ended(tree)) == 2 + MAX_REPEATS
    assert tree.nodes[0].stats is not None
    assert tree.nodes[0].stats.shortfall == NO_FURTHER_EPISODE
    assert tree_from_json(tree_to_json(tree)) == tree
    assert rollout_metrics([Group(key="g", trees=(tree,))], success_at=1.0)["rollout/short_trees"] == 1.0


def test_group_is_short_where_the_budget_is_spent() -> None:
    strategy = Mcts(simulations=2, budget=SearchBudget(env_steps=9))
    (tree,) = grow(strategy, Babbler("abc"), make_env=Ladder, group_size=6).trees
    assert tree.nodes[0].stats is not None
    assert tree.nodes[0].stats.shortfall == OUT_OF_BUDGET


class Rooms(Parrot):
    """Shows the number of the room that the agent is in: room 0, whatever it says, but for one letter."""

    def respond(self, action: Action) -> Reply:
        """Go to room 1 at a z."""
        return Reply(observation=f"room {int(action.content == 'z')}", reward=0.0)


def test_novelty_is_of_what_the_env_shows_not_of_what_was_sampled() -> None:
    # Every simulation samples other words. Room 0 is shown in the first one, room 1 never: one of 12 is novel.
    strategy = Mcts(simulations=12, novelty=1.2, width=20, widening=1.0)
    policy = ScriptedPolicy(lambda request: said(str(request.seed)))
    tree = answer(strategy, policy, make_env=lambda: Rooms(max_turns=1), agent=char_agent())
    assert len({node.outcome.action.content for node in tree.nodes if node.outcome is not None}) == 12
    assert tree.nodes[0].stats is not None
    assert tree.nodes[0].stats.visits == 12
    assert tree.nodes[0].stats.value == pytest.approx(0.1)


@pytest.mark.parametrize("rule", ["uct", "puct"])
def test_simulations_go_where_rewards_are(rule: Literal["uct", "puct"]) -> None:
    strategy = Mcts(simulations=24, rule=rule, c=0.3, width=12, widening=0.8)
    tree = answer(strategy, ScriptedPolicy(wanders), make_env=Fork, agent=char_agent())
    visits: dict[str, int] = {}
    for child in tree.children[0]:
        node = tree.nodes[child]
        if node.outcome is not None and node.stats is not None and node.stats.repeats != "tokens":
            visits[node.outcome.action.content] = node.stats.visits
    assert sum(visits.values()) == 24
    assert visits["b"] > 1.5 * visits["a"]


def test_value_leads_and_chooses_without_a_reward() -> None:
    strategy, solved = Mcts(simulations=24, value=Choice(name=CLIMBER), c=0.3), 0
    for seed in range(6):
        tree = answer(strategy, Babbler(end=0.1), make_env=Ladder, seed=seed)
        (episode,) = trajectories(tree)
        solved += episode.reward == Scored(value=1.0)
        assert UNFINISHED in {stats.pruned for stats in stats_of(tree)}
    assert solved >= 3  # a chain succeeds in 7 % of 200 samples
    assert not strategy.selection.is_oracle
    assert strategy.selection.by == CLIMBER


def test_search_led_by_rewards_is_an_oracles_whatever_chooses() -> None:
    assert Mcts().selection.is_oracle
    assert Mcts(select=Choice(name="majority")).selection.is_oracle
    assert Mcts(value=Choice(name=CLIMBER), select=Choice(name="reward")).selection.is_oracle
    assert not Mcts(value=Choice(name=CLIMBER), select=Choice(name="majority")).selection.is_oracle


@pytest.mark.parametrize("fields", [{}, {"value": CLIMBER}, {"value": CLIMBER, "roll_forward": 1}, {"frontier": True}])
@pytest.mark.parametrize("budget", [SearchBudget(), SearchBudget(tokens_generated=60)])
def test_search_does_not_depend_on_who_is_faster(fields: dict[str, object], budget: SearchBudget) -> None:
    strategy = Mcts.model_validate({"simulations": 12, "budget": budget, **fields})
    calm = answer(strategy, Babbler(), make_env=Ladder)
    assert answer(strategy, Babbler(pace=3), make_env=Ladder) == calm


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("value", [None, Choice(name=CLIMBER)])
def test_simulations_go_on_until_the_budget_is_spent(deterministic: bool, value: Choice | None) -> None:
    strategy = Mcts(
        simulations=None,
        width=50,
        widening=1.0,
        value=value,
        deterministic=deterministic,
        budget=SearchBudget(env_steps=33),
    )
    tree = answer(strategy, Babbler("abc", end=0.2), make_env=Ladder)
    assert tree.cost.env_steps == 33
    assert len(tree.leaves) == 1


def test_broken_simulation_is_not_a_visit() -> None:
    tree = answer(Mcts(simulations=6, width=9, widening=1.0), Babbler(fails_at=5), make_env=Ladder)
    assert [tree.nodes[leaf].ending for leaf in ended(tree)].count(Ending.ERROR_POLICY) == 1
    assert tree.nodes[0].stats is not None
    assert tree.nodes[0].stats.visits == 5


def test_decayed_values_of_a_success_stand_on_its_path() -> None:
    strategy = Mcts(simulations=1, backup="decayed")
    (tree,) = grow(
        strategy,
        ScriptedPolicy(lambda request: said(f"b{request.seed % 1000}")),
        make_env=Ladder,
        group_size=2,
        agent=char_agent(),
    ).trees
    first = [node.stats.value for node in tree.nodes[:4] if node.stats is not None]
    # Two successes of four nodes that part at the last turn: gamma = 1/4, 2/4, 3/4, twice, and 1.
    assert first == [0.5, 1.0, 1.5, 1.0]


def test_what_cannot_be_searched_is_refused() -> None:
    agent = char_agent().settings
    with pytest.raises(SettingsError, match="simulations=None must be used with a budget"):
        Mcts(simulations=None).check(Ladder(), agent, group_size=None)
    with pytest.raises(SettingsError, match="backup=decayed must be used with rewards"):
        Mcts(backup="decayed", value=Choice(name=CLIMBER)).check(Ladder(), agent, group_size=None)
    with pytest.raises(UnknownName, match="value must be a known name"):
        Mcts(value=Choice(name="nothing")).check(Ladder(), agent, group_size=None)
    with pytest.raises(SettingsError, match="group must hold at least 2 episodes"):
        Mcts().check(Ladder(), agent, group_size=1)
