"""Solutions of hard prompts: who is kept, and what takes the place of a search."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.tree import Source
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import TaskRequest
from envgym.trainer.methods.replay.solutions import Solutions
from tests.support.credit_trees import BRANCH, branched, chain, group_of

KEY = chain("t", [1.0]).task_key


def searched(right: int, wrong: int, name: str = "s") -> Group:
    """Return a group of one tree with so many right and wrong leaves below one node."""
    return group_of(branched(name, (0, BRANCH), *[(1, 1.0)] * right, *[(1, 0.0)] * wrong))


def asked(replay: Solutions, *, group_size: int = 8) -> TaskRequest:
    (request,) = replay.plan(2, [TaskRequest("env", 0, group_size)], [KEY])
    return request


def test_solved_paths_of_hard_prompts_are_kept_with_the_share_that_failed_as_priority() -> None:
    replay = Solutions()
    replay.add(1, [searched(1, 7, "a"), searched(2, 6, "b"), searched(3, 5, "easy"), searched(0, 8, "unsolved")])
    kept = replay.candidates(2, KEY).entries
    assert [(entry.tree.id, entry.priority) for entry in kept] == [("a/2", 7 / 8), ("b/2", 6 / 8), ("b/3", 6 / 8)]
    assert all(len(entry.tree.leaves) == 1 for entry in kept)  # the path, not the tree


def test_prompt_with_solutions_is_played_directly_and_gets_them() -> None:
    replay = Solutions(direct_share=0.5)
    replay.add(1, [searched(2, 6)])
    request = asked(replay)
    # 2 cached: round(0.5 * (8 - 2)) = 3 direct episodes, and both solutions
    assert (request.group_size, request.direct) == (3, True)
    sampled = group_of(*(chain(f"t{number}", [0.0]) for number in range(3)))
    (group,) = replay.join(2, [request], [sampled], seed=0)
    assert episode_rewards(group) == [0, 0, 0, 1, 1]
    assert [tree.source for tree in group.trees] == [Source.POLICY] * 3 + [Source.REPLAY] * 2


def test_prompt_without_a_solution_is_searched_as_before() -> None:
    replay = Solutions()
    replay.add(1, [searched(0, 8)])
    request = asked(replay)
    assert request == TaskRequest("env", 0, 8)
    group = searched(1, 7)
    assert replay.join(2, [request], [group], seed=0) == [group]


@given(cached=st.integers(1, 12), group_size=st.integers(1, 9), share=st.floats(0.05, 1))
def test_an_episode_is_played_and_the_group_is_never_too_large(cached: int, group_size: int, share: float) -> None:
    replay = Solutions(direct_share=share, hard_below=0.5)
    trees = [replace(branched(f"s{n}", (0, BRANCH), (1, 1.0), (1, 0.0))) for n in range(cached)]
    replay.add(1, [group_of(*trees)])
    request = asked(replay, group_size=group_size)
    sampled = group_of(*(chain(f"t{number}", [0.0]) for number in range(request.group_size)))
    (group,) = replay.join(2, [request], [sampled], seed=0)
    assert request.group_size >= 1
    assert len(group.trees) <= group_size
    assert sum(episode_rewards(group)) <= cached
