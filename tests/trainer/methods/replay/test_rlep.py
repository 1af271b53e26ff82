"""RLEP: successes join the group of their task, and are compared with what was sampled."""

from dataclasses import replace
from pathlib import Path

import pytest

from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Source
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from envgym.trainer.methods.credit.outcome import Grpo, episode_rewards
from envgym.trainer.methods.replay.rlep import Rlep
from tests.support.credit_trees import chain, group_of
from tests.support.example_trees import outcome_tree
from tests.support.parrots import char_agent, said, show


def sampled(*rewards: float, step: int = 1) -> Group:
    return group_of(*(chain(f"step-{step}/{number}", [reward]) for number, reward in enumerate(rewards)))


def joined(replay: Rlep, group: Group, *, step: int = 2) -> Group:
    (found,) = replay.join(step, [], [group], seed=7)
    return found


def test_successes_join_the_next_group_of_their_task_and_share_its_baseline() -> None:
    replay = Rlep(draws=2)
    replay.add(1, [sampled(1, 0, 1, 0)])
    group = joined(replay, sampled(0, 0, 0, 0, step=2))
    assert episode_rewards(group) == [0, 0, 0, 0, 1, 1]
    assert [tree.source for tree in group.trees[4:]] == [Source.REPLAY] * 2
    assert [tree.id for tree in group.trees[4:]] == ["group/replay/00", "group/replay/01"]
    # mean 1/3; unbiased variance (4 * 1/9 + 2 * 4/9) / 5 = 4/15; z = -1/3 / sqrt(4/15) and 2/3 / sqrt(4/15)
    advantages = [credit.advantages[1] for credit in Grpo()(group)]
    assert advantages == pytest.approx([-0.645497] * 4 + [1.290994] * 2, abs=1e-5)


def test_group_whose_task_never_succeeded_stays_as_it_was() -> None:
    replay = Rlep()
    other = replace(chain("other", [1.0]), task_key="another task")
    replay.add(1, [sampled(0, 0), Group(key="other", trees=(other,))])
    group = sampled(0, 1, step=2)
    assert joined(replay, group) == group


def test_fewer_successes_than_draws_give_those_there_are() -> None:
    replay = Rlep(draws=5)
    replay.add(1, [sampled(1, 0)])
    assert episode_rewards(joined(replay, sampled(0, 0, step=2))) == [0, 0, 1]


def test_draws_depend_on_seed_and_step_alone() -> None:
    replay = Rlep(draws=3)
    replay.add(1, [group_of(*(chain(f"t{turns}", [0.0] * turns + [1.0]) for turns in range(12)))])
    group = sampled(0, step=2)

    def drawn(step: int, seed: int) -> list[int]:
        (found,) = replay.join(step, [], [group], seed=seed)
        return [len(item.turns) for item in found.trajectories[1:]]

    assert drawn(2, 7) == drawn(2, 7)
    assert len(set(drawn(2, 7))) == 3
    assert len({tuple(drawn(step, seed)) for step in (2, 3) for seed in (7, 8)}) == 4


def test_old_successes_and_those_of_a_run_that_does_not_collect_are_not_replayed() -> None:
    replay = Rlep(max_age=1)
    replay.add(1, [sampled(1)])
    assert len(joined(replay, sampled(0, step=2), step=2).trees) == 2
    assert len(joined(replay, sampled(0, step=3), step=3).trees) == 1
    replay.add(3, [sampled(0, step=3)])
    assert len(replay.candidates(2, sampled(0).trees[0].task_key)) == 0  # what is too old has left the buffer
    still = Rlep(collect=False)
    still.add(1, [sampled(1)])
    assert len(joined(still, sampled(0, step=2)).trees) == 1


def test_pool_of_a_trained_run_holds_its_successes(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="teacher", config={})
    again = replace(chain("again", [1.0]), source=Source.REPLAY)
    run.write_episodes(3, episode_rows([*sampled(1, 0).trees, again], step=3))
    group = joined(Rlep(directory=str(tmp_path / "run"), draws=9), sampled(0, step=1), step=1)
    assert episode_rewards(group) == [0, 1]  # the failure and what that run itself replayed are not in the pool


def test_pool_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    agent, ids = char_agent(), said("yes")
    tree = outcome_tree("t", 1.0)
    prompt = Segment(origin=Origin.PROMPT, token_ids=ids, token_strings=("Ja", *show(ids)[1:]))
    root = replace(tree.nodes[0], edge=Edge(segments=(prompt,), ends_turn=False))
    run = RunDirectory.create(tmp_path / "run", name="teacher", config={})
    run.write_episodes(1, episode_rows([replace(tree, nodes=(root, *tree.nodes[1:]))], step=1))
    match = f"recorded episodes must hold tokens of this model's vocabulary, got id {ids[0]} for 'Ja'"
    with pytest.raises(SettingsError, match=match):
        Rlep(directory=str(tmp_path / "run")).check_agent(agent)


def test_buffer_is_saved_and_loaded(tmp_path: Path) -> None:
    replay = Rlep()
    replay.add(1, [sampled(1, 0)])
    replay.save(tmp_path)
    again = Rlep()
    again.load(tmp_path)
    group = sampled(0, step=2)
    assert joined(again, group) == joined(replay, group)
