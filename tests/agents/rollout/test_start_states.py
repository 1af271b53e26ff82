"""Episodes that go on from a recorded state: as context that does not train; what cannot be restored is an ending."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from envgym import Action, Ending, Reply, Scored, Split
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.agents.rollout.driver import run_oracle_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import BestOf, Chain, RandomExpand, RolloutContext, Strategy
from envgym.core.segments import Origin
from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.trajectory import StartState, start_states, trajectories
from envgym.core.tree import RecordedPrefix, Source, Tree
from envgym.errors import InvalidInput
from tests.support.parrots import CharRenderer, Parrot, char_agent, parrot_job, run_episodes, said, show
from tests.support.toys import Counter, CounterTasks

SPOKEN = ("one", "two", "three", "bye")


def by_turn(words: tuple[str, ...]) -> Callable[[GenerateRequest], tuple[int, ...]]:
    """Say one word after the other; the context tells how many were said."""

    def say(request: GenerateRequest) -> tuple[int, ...]:
        text = "".join(show(request.token_ids))
        return said(words[sum(f"{word}!" in text for word in SPOKEN)])

    return say


def run(job: EpisodeJob, words: tuple[str, ...] = SPOKEN, **settings: Any) -> Tree:
    policy = ScriptedPolicy(by_turn(words))
    (tree,) = asyncio.run(run_episodes([job], char_agent(**settings), policy, concurrency=1, clock=lambda: 0.0))
    return tree


@pytest.fixture(scope="module")
def recorded() -> Tree:
    return run(parrot_job())


def origins(tree: Tree, node: int) -> list[Origin]:
    return [segment.origin for segment in tree.nodes[node].edge.segments]


def test_states_are_where_turns_ended_and_the_episode_went_on(recorded: Tree) -> None:
    assert [state.node for state in start_states(recorded)] == [1, 2, 3]
    assert [turn.outcome.action for turn in start_states(recorded)[1].turns if turn.outcome] == ["one", "two"]
    for node in (0, 4, 5):
        with pytest.raises(InvalidInput, match=f"start state must be one where a turn ended .* got node {node}"):
            StartState(tree=recorded, node=node)


def test_episode_goes_on_from_the_state_with_the_recorded_tokens_as_context(recorded: Tree) -> None:
    start = start_states(recorded)[1]
    tree = run(replace(parrot_job(tree_id="again"), start=start))
    assert tree.prefix == RecordedPrefix(recorded.id, 2, 2)
    assert len(tree.nodes) == len(recorded.nodes)
    for number, (again, first) in enumerate(zip(tree.nodes, recorded.nodes, strict=True)):
        assert [part.token_ids for part in again.edge.segments] == [part.token_ids for part in first.edge.segments]
        assert again.outcome == first.outcome
        was_sampled = Origin.POLICY in origins(tree, number)
        assert was_sampled == (number > 2)
        assert (again.edge.cost.tokens_generated > 0) == was_sampled
    assert origins(tree, 1) == [Origin.INJECTED, *origins(recorded, 1)[1:]]
    (episode,) = trajectories(tree)
    assert episode.reward == Scored(value=1.0)  # four turns of 0.25, those before the state included
    (row,) = episode.rows
    assert next(row.turns[place] for place, trains in enumerate(row.loss_mask) if trains) == 2
    assert tree_from_json(tree_to_json(tree)) == tree


def test_turns_of_a_demonstration_stay_a_demonstration(recorded: Tree) -> None:
    shown = replace(recorded, source=Source.DEMONSTRATION)
    tree = run(replace(parrot_job(), start=StartState(tree=shown, node=2)))
    assert origins(tree, 1) == [Origin.DEMONSTRATION, *origins(recorded, 1)[1:]]
    (row,) = trajectories(tree)[0].rows
    assert not any(row.loss_mask[place] for place in range(len(row)) if row.turns[place] < 2)
    again = run(replace(parrot_job(), start=start_states(tree)[0]))
    assert [node.outcome for node in again.nodes] == [node.outcome for node in recorded.nodes]


def test_state_of_an_episode_that_itself_went_on_is_restored_too(recorded: Tree) -> None:
    second = run(replace(parrot_job(tree_id="second"), start=start_states(recorded)[0]))
    third = run(replace(parrot_job(tree_id="third"), start=start_states(second)[2]))
    assert third.prefix == RecordedPrefix("second", 3, 3)
    assert [node.outcome for node in third.nodes] == [node.outcome for node in recorded.nodes]


def test_turns_that_were_recorded_without_tokens_are_written_by_the_agent(recorded: Tree) -> None:
    bare = replace(
        recorded, nodes=tuple(replace(node, edge=replace(node.edge, segments=())) for node in recorded.nodes)
    )
    tree = run(replace(parrot_job(), start=StartState(tree=bare, node=2)))
    assert [node.outcome for node in tree.nodes] == [node.outcome for node in recorded.nodes]


def test_hint_may_be_given_at_a_recorded_state(recorded: Tree) -> None:
    tree = run(replace(parrot_job(), start=start_states(recorded)[0], hint="H"))
    assert Origin.INJECTED in origins(tree, 0)
    assert [node.outcome for node in tree.nodes] == [node.outcome for node in recorded.nodes]
    again = run(replace(parrot_job(), start=start_states(tree)[1]))  # the hint itself is not part of the state
    assert again.prompts == {}


def test_context_that_was_rewritten_is_rewritten_again() -> None:
    words = ("<think>a</think>one", "two", "bye")
    agent = char_agent(CharRenderer(drops_thinking=True))

    async def play(job: EpisodeJob) -> Tree:
        policy = ScriptedPolicy(by_turn(words))
        return (await run_episodes([job], agent, policy, concurrency=1, clock=lambda: 0.0))[0]

    first = asyncio.run(play(parrot_job()))
    again = asyncio.run(play(replace(parrot_job(), start=start_states(first)[1])))
    assert [node.edge.rewrite for node in again.nodes] == [node.edge.rewrite for node in first.nodes]
    assert len(trajectories(again)[0].rows) == len(trajectories(first)[0].rows) == 2


class Forgetful(Parrot):
    """Says another word from the second turn on than when it was recorded."""

    def respond(self, action: Action) -> Reply:
        reply = super().respond(action)
        return replace(reply, observation="what?") if self.state.heard == 2 else reply


class Short(Parrot):
    def respond(self, action: Action) -> Reply:
        return replace(super().respond(action), terminated=True)


@pytest.mark.parametrize(
    "env, reason, num_nodes",
    [
        (Forgetful, "observation of turn 1 of the replay must equal 'two!', got 'what?'", 3),
        (Short, "ending of turn 0 of the replay must equal None", 2),
    ],
)
def test_unrestorable_state_is_an_ending(recorded: Tree, env: type[Parrot], reason: str, num_nodes: int) -> None:
    tree = run(replace(parrot_job(env), start=start_states(recorded)[2]))
    (episode,) = trajectories(tree)
    assert (episode.ending, episode.is_valid) == (Ending.ERROR_ENV, False)
    assert reason in str(tree.nodes[-1].error)
    assert len(tree.nodes) == num_nodes
    assert all(Origin.POLICY not in origins(tree, node) for node in range(len(tree.nodes)))


def test_state_of_an_agent_with_other_words_is_an_ending(recorded: Tree) -> None:
    tree = run(replace(parrot_job(), start=start_states(recorded)[0]), system_prompt="Be kind.")
    assert trajectories(tree)[0].ending is Ending.ERROR_ENV
    assert "first context must be that of the recorded episode" in str(tree.nodes[-1].error)


@pytest.mark.parametrize("strategy", [Chain(), BestOf(n=3), RandomExpand(nodes=2)])
def test_every_search_begins_at_the_state(recorded: Tree, strategy: Strategy) -> None:
    job = replace(parrot_job(), start=start_states(recorded)[1])

    async def grow() -> Tree:
        context = RolloutContext(
            agent=char_agent(),
            policy=ScriptedPolicy(by_turn(SPOKEN)),
            sampling=Sampling(),
            slots=asyncio.Semaphore(4),
        )
        return await strategy.grow_tree(job, context, group_size=3)

    tree = asyncio.run(grow())
    assert tree.prefix == RecordedPrefix(recorded.id, 2, 2)
    for episode in trajectories(tree):
        assert episode.reward == Scored(value=1.0)
        assert [turn.outcome.action for turn in episode.turns if turn.outcome] == list(SPOKEN)


def test_demonstration_with_chance_is_restored_by_its_seed() -> None:
    task = CounterTasks().task(Split.TRAIN, 200)
    job = EpisodeJob(make_env=Counter, task=task, seed=3, tree_id="oracle", env_id="counter")
    oracle = asyncio.run(run_oracle_episode(job, char_agent()))
    *_, last = start_states(oracle)

    def answer(request: GenerateRequest) -> tuple[int, ...]:
        return said("DONE")

    (tree,) = asyncio.run(run_episodes([replace(job, start=last)], char_agent(), ScriptedPolicy(answer), concurrency=1))
    assert trajectories(tree)[0].reward == Scored(value=1.0)
    other = asyncio.run(
        run_episodes([replace(job, start=last, seed=4)], char_agent(), ScriptedPolicy(answer), concurrency=1)
    )
    assert trajectories(other[0])[0].ending is Ending.ERROR_ENV
