"""Branches where the policy was least sure: which tokens, and that a fork inside a turn samples as if straight on."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.search import SurprisalFork
from envgym.agents.search.budget import SearchBudget
from envgym.agents.search.surprisal_fork import Where
from envgym.core.segments import Origin
from envgym.core.trajectory import share_counts
from envgym.core.tree import Tree
from envgym.core.turns import Ending
from tests.agents.search.growing import Babbler, episodes, grow
from tests.support.generations import generated
from tests.support.parrots import CALL, END, CharRenderer, Parrot, char_agent, encode, said, show


def one_tree(policy: ScriptedPolicy, strategy: SurprisalFork, **options: object) -> Tree:
    (tree,) = grow(strategy, policy, group_size=1 + strategy.nodes * strategy.branches, **options).trees  # type: ignore[arg-type]  # by name
    return tree


def shown(tree: Tree) -> list[tuple[int | None, str]]:
    return [
        (node.parent, "".join("".join(show(part.token_ids)) for part in node.edge.segments)) for node in tree.nodes[1:]
    ]


def scripted(request: GenerateRequest) -> Generation:
    """Say `abcd` with the third token the least likely; behind `ab` say `xy`."""
    behind = request.token_ids[-2:] == encode("ab")
    ids = said("xy" if behind else "abcd")
    logprobs = (-0.5, -0.6, -0.7) if behind else (-0.1, -0.2, -3.0, -0.3, -0.4)
    return generated(ids, logprobs)


def test_branches_leave_before_the_token_of_highest_surprisal() -> None:
    tree = one_tree(ScriptedPolicy(scripted), SurprisalFork(nodes=1, branches=2), make_env=lambda: Parrot(max_turns=1))
    assert shown(tree) == [(0, "ab"), (1, "cd<end>"), (1, "xy<end>"), (1, "xy<end>")]
    assert [node.edge.ends_turn for node in tree.nodes] == [False, False, True, True, True]
    assert [episode.turns[0].outcome.action.content for episode in episodes([tree]) if episode.turns[0].outcome] == [
        "abcd", "abxy", "abxy",
    ]  # fmt: skip
    assert [episode.rows[0].behavior_logprobs[-5:] for episode in episodes([tree])] == [
        (-0.1, -0.2, -3.0, -0.3, -0.4), (-0.1, -0.2, -0.5, -0.6, -0.7), (-0.1, -0.2, -0.5, -0.6, -0.7),
    ]  # fmt: skip
    # 5 tokens of the first episode, and 3 of each continuation; the shared ones were sampled once.
    assert tree.cost.tokens_generated == 11
    assert [stats.repeats for node in tree.nodes if (stats := node.stats) is not None and stats.repeats] == ["tokens"]
    (first, *_) = share_counts([episode.rows[0] for episode in episodes([tree])])
    assert first[-5:] == (3, 3, 1, 1, 1)


def test_tokens_on_both_sides_of_a_fork_carry_the_version_that_sampled_them() -> None:
    def learns(request: GenerateRequest) -> Generation:
        return replace(scripted(request), policy_version=4 + (request.token_ids[-2:] == encode("ab")))

    tree = one_tree(ScriptedPolicy(learns), SurprisalFork(nodes=1, branches=1), make_env=lambda: Parrot(max_turns=1))
    versions = [[part.policy_version for part in node.edge.segments] for node in tree.nodes[1:]]
    assert list(zip(shown(tree), versions, strict=True)) == [
        ((0, "ab"), [4]),
        ((1, "cd<end>"), [4]),
        ((1, "xy<end>"), [5]),
    ]
    straight, branched = (episode.turns[0] for episode in episodes([tree]))
    assert (straight.policy_version, branched.policy_version) == (4, 4)  # the smallest of a turn


def test_continuation_gets_what_is_left_of_the_turn() -> None:
    policy = ScriptedPolicy(scripted)
    one_tree(
        policy,
        SurprisalFork(nodes=1, branches=1),
        make_env=lambda: Parrot(max_turns=1),
        agent=char_agent(max_turn_tokens=9),
    )
    assert [(show(request.token_ids[-2:]), request.sampling.max_new_tokens) for request in policy.requests] == [
        (("<end>", "<assistant>"), 9), (("a", "b"), 7),
    ]  # fmt: skip


@settings(max_examples=20)
@given(nodes=st.integers(1, 4), branches=st.integers(1, 3), rounds=st.integers(1, 3), seed=st.integers(0, 999))
def test_rows_are_what_sampling_straight_gives(nodes: int, branches: int, rounds: int, seed: int) -> None:
    policy, most = Babbler("abc", end=0.2), 1 + nodes * branches * rounds
    strategy = SurprisalFork(trees=1, nodes=nodes, branches=branches, rounds=rounds)
    grown = grow(strategy, policy, group_size=most, seed=seed)
    found = episodes(grown.trees)
    assert len(found) == most
    for episode in found:
        for row in episode.rows:
            for at, (token, trains) in enumerate(zip(row.token_ids, row.loss_mask, strict=True)):
                if trains:
                    assert row.behavior_logprobs[at] == math.log(policy.odds(row.token_ids[:at])[token])
        for turn in episode.turns:
            sampled = [token for part in turn.segments if part.origin is Origin.POLICY for token in part.token_ids]
            assert len(sampled) <= 12
            if turn.outcome is not None:
                assert turn.outcome.action.content == "".join(show([token for token in sampled if token != END]))
    # Every sampled token stands on one edge, and was paid for once.
    (tree,) = grown.trees
    parts = [part for node in tree.nodes for part in node.edge.segments if part.origin is Origin.POLICY]
    assert tree.cost.tokens_generated == sum(len(part) for part in parts) == grown.spent.tokens_generated


def test_no_token_is_taken_twice_and_every_round_takes_the_best_that_is_left() -> None:
    policy = Babbler("abc", end=0.3)
    few = grow(SurprisalFork(trees=1, nodes=2, branches=1, rounds=1), policy, group_size=3).trees[0]
    more = grow(SurprisalFork(trees=1, nodes=2, branches=1, rounds=2), policy, group_size=5).trees[0]
    rows = [{episode.rows[0].token_ids for episode in episodes([tree])} for tree in (few, more)]
    assert rows[0] <= rows[1]
    assert len(rows[1]) > 3


def test_one_token_turns_are_begun_anew_at_the_root() -> None:
    tree = one_tree(Babbler(end=1.0 - 1e-9), SurprisalFork(nodes=2, branches=2), make_env=lambda: Parrot(max_turns=1))
    assert len(tree.leaves) == 5
    assert {node.parent for node in tree.nodes[1:]} == {0}


def test_a_context_rendered_anew_is_shared_by_the_forks_of_its_turn() -> None:
    def forgetful(request: GenerateRequest) -> Generation:
        is_first = request.token_ids.count(END) == 1
        ids = said("<think>hm</think>a") if is_first else said("xyz")[-min(request.sampling.max_new_tokens, 4) :]
        surprise = tuple(-5.0 if token == ord("y") else -0.1 for token in ids)
        return generated(ids, surprise)

    tree = one_tree(
        ScriptedPolicy(forgetful),
        SurprisalFork(nodes=1, branches=1),
        make_env=lambda: Parrot(max_turns=2),
        agent=char_agent(CharRenderer(drops_thinking=True), text_format="hermes"),
    )
    assert len(tree.leaves) == 2
    assert [node.edge.rewrite is not None for node in tree.nodes] == [False, False, True, False, False]
    first, second = (episode.rows[-1].token_ids for episode in episodes([tree]))
    assert first[: -len("yz") - 1] == second[: len(first) - len("yz") - 1]


@pytest.mark.parametrize("budget", [SearchBudget(), SearchBudget(tokens_generated=70)])
@pytest.mark.parametrize("where", list(Where))
def test_forks_do_not_depend_on_who_is_faster(where: Where, budget: SearchBudget) -> None:
    strategy = SurprisalFork(trees=2, nodes=2, branches=2, rounds=2, where=where, budget=budget)
    calm = grow(strategy, Babbler(), group_size=6)
    assert grow(strategy, Babbler(pace=3), group_size=6) == calm
    assert grow(strategy, Babbler(pace=5), group_size=6, slots=1) == calm


def test_a_fork_that_breaks_is_a_leaf_behind_the_shared_tokens() -> None:
    def breaks(request: GenerateRequest) -> Generation | Exception:
        return RuntimeError("gone") if request.token_ids[-1:] == encode("b") else scripted(request)

    tree = one_tree(ScriptedPolicy(breaks), SurprisalFork(nodes=1, branches=1), make_env=lambda: Parrot(max_turns=1))
    assert shown(tree) == [(0, "ab"), (1, "cd<end>"), (1, "")]
    assert tree.nodes[3].ending is Ending.ERROR_POLICY


def calls(request: GenerateRequest) -> Generation:
    """Call a tool, then speak: the second turn is surer than the first by 3 nats a token, or less sure."""
    ids = said(CALL) if request.token_ids.count(END) == 1 else said("bye")
    logprob = -1.0 if request.token_ids.count(END) == 1 else -9.0
    return generated(ids, (logprob,) * len(ids))


@pytest.mark.parametrize("probability, parent", [(1.0, 1), (0.0, 0)])
def test_turns_after_tools_are_branched_or_the_episode_is_begun_anew(probability: float, parent: int) -> None:
    strategy = SurprisalFork(where=Where.AFTER_TOOL, nodes=1, branches=1, probability=probability, weight=0.0)
    tree = one_tree(ScriptedPolicy(calls), strategy, agent=char_agent(text_format="hermes"))
    assert tree.nodes[3].parent == parent
    assert len(tree.leaves) == 2


def test_entropy_of_the_first_turn_is_subtracted() -> None:
    # H_0 = 20 x 1 / 10.3735 = 1.928, H = 4 x 9 / 10.3735 = 3.470. w = -0.3 and p = 1 give 1 - 0.3 (H - H_0) = 0.537,
    # and w = -0.65 gives -0.002: never; with H alone both are below 0, with H_0 alone both are above it.
    # w = 0.25 and p = 0 give 0.385, so some seeds branch; H alone gives 0.868, H + H_0 more than 1.
    def share_of_branched(probability: float, weight: float) -> float:
        strategy = SurprisalFork(where=Where.AFTER_TOOL, nodes=1, branches=1, probability=probability, weight=weight)
        grown = [
            one_tree(ScriptedPolicy(calls), strategy, agent=char_agent(text_format="hermes"), seed=seed)
            for seed in range(40)
        ]
        return sum(tree.nodes[3].parent == 1 for tree in grown) / len(grown)

    assert share_of_branched(1.0, -0.65) == 0.0
    assert abs(share_of_branched(1.0, -0.3) - 0.537) < 0.24  # 3 standard deviations of 40 draws
    assert abs(share_of_branched(0.0, 0.25) - 0.385) < 0.24


def test_rise_of_entropy_decides() -> None:
    # H_0: 20 tokens of 1 nat, H: 4 tokens of 9 nats; ln 32000 = 10.3735. Rise (36 - 20) / 10.3735 = 1.542.
    # p + w rise = 1 for w = 0.65 (0.5 + 1.003): always; with w = -0.65 it is below 0: never.
    for weight, parent in ((0.65, 1), (-0.65, 0)):
        strategy = SurprisalFork(where=Where.AFTER_TOOL, nodes=1, branches=1, weight=weight)
        for seed in range(5):
            tree = one_tree(ScriptedPolicy(calls), strategy, agent=char_agent(text_format="hermes"), seed=seed)
            assert tree.nodes[3].parent == parent
