"""Evaluation: the plan alone decides what is run, and what is found is counted by task."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envgym import Ending, Split, Task
from envgym.agents.evaluation.play import (
    EvalPlan,
    EvalRecord,
    Evaluation,
    OnFinished,
    Player,
    check_prompts,
    evaluate,
    held_out_tasks,
    record_evaluation,
    token_player,
)
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import Chain
from envgym.agents.settings import EvaluationSettings
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, PolicyFailure, RunError
from envgym.stats import successes_of
from tests.support.example_trees import outcome_tree
from tests.support.parrots import char_agent, said, show
from tests.support.toys import Counter, CounterTasks

SPLIT = CounterTasks(40)


class Repeats:
    """A supply in which every second task is the one before."""

    def size(self, split: Split) -> int:
        return SPLIT.size(split) * 2

    def task(self, split: Split, index: int) -> Task:
        return SPLIT.task(split, index // 2)


def plan(tasks: int = 3, samples: int = 2, **changes: object) -> EvalPlan:
    fields = {"env_id": "counter", "make_env": Counter, "tasks": held_out_tasks(SPLIT, tasks), "seed": 7}
    settings = EvaluationSettings(samples=samples)
    return EvalPlan(**{**fields, "settings": settings, **changes})  # type: ignore[arg-type]  # by name


def play(chosen: EvalPlan, answer: str = "DONE", concurrency: int = 4) -> list[Tree]:
    return evaluated(chosen, lambda request: said(answer), concurrency=concurrency).trees


def evaluated(
    chosen: EvalPlan,
    answer: Callable[[GenerateRequest], tuple[int, ...] | Exception],
    *,
    concurrency: int = 4,
    max_context_tokens: int = 100_000,
) -> Evaluation:
    settings = EvaluationSettings()
    tokens = min(1000, max_context_tokens - 1)
    agent = char_agent(
        name="plain", text_format="hermes", max_turn_tokens=tokens, max_context_tokens=max_context_tokens
    )
    player = token_player(agent, ScriptedPolicy(answer), Chain(), settings, concurrency=concurrency)
    return asyncio.run(evaluate(chosen, player, step=0))


def tree_of(job: EpisodeJob, reward: float) -> Tree:
    return replace(outcome_tree(job.tree_id, reward), task_id=job.task.id)


def completed(chosen: EvalPlan, player: Player, finished: Sequence[Tree]) -> list[Tree]:
    """Return the trees of a plan of which some are finished."""
    return asyncio.run(evaluate(chosen, player, step=0, finished=finished)).trees


def test_tasks_are_the_first_of_the_test_split_each_once() -> None:
    assert [task.id for task in held_out_tasks(SPLIT, 3)] == ["test/0", "test/1", "test/2"]
    assert held_out_tasks(Repeats(), 3) == held_out_tasks(SPLIT, 3)
    assert [task.split for task in held_out_tasks(SPLIT, 2, split=Split.TRAIN)] == [Split.TRAIN] * 2


def test_fewer_tasks_than_were_asked_for_is_all_there_is() -> None:
    assert len(held_out_tasks(SPLIT, 10_000)) == len(held_out_tasks(Repeats(), 10_000)) == SPLIT.size(Split.TEST)


def test_smaller_evaluation_is_the_beginning_of_a_larger_one() -> None:
    assert plan(tasks=3).jobs() == plan(tasks=5).jobs()[: 3 * 2]


def test_every_episode_has_a_seed_and_a_name_of_its_own() -> None:
    jobs = plan(tasks=5, samples=4).jobs()
    assert len({job.tree_id for job in jobs}) == len({job.seed for job in jobs}) == 20
    assert [job.task.id for job in jobs[:5]] == ["test/0"] * 4 + ["test/1"]


def test_jobs_are_a_function_of_the_plan_alone() -> None:
    seeds = [job.seed for job in plan().jobs()]
    assert seeds == [job.seed for job in plan().jobs()]
    assert set(seeds).isdisjoint(job.seed for job in plan(seed=8).jobs())
    assert set(seeds).isdisjoint(job.seed for job in plan(env_id="other").jobs())


def test_env_is_evaluated_alike_alone_and_in_a_mixture() -> None:
    alone, mixed = plan().jobs(), plan(label="held-out counter").jobs()
    assert [job.seed for job in alone] == [job.seed for job in mixed]
    assert {job.tree_id for job in alone}.isdisjoint(job.tree_id for job in mixed)


def test_tasks_of_one_id_are_refused() -> None:
    class Nameless(Repeats):
        def task(self, split: Split, index: int) -> Task:
            return replace(SPLIT.task(split, index), id="7")

    assert len(held_out_tasks(Nameless(), 1)) == 1
    with pytest.raises(InvalidInput, match=r"task id must be unique in its split, got '7' twice \(test split\)"):
        held_out_tasks(Nameless(), 2)


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_episodes_come_in_the_order_of_the_plan(concurrency: int) -> None:
    trees = play(plan(), concurrency=concurrency)
    assert [tree.id for tree in trees] == [job.tree_id for job in plan().jobs()]
    assert [tree.task_id for tree in trees] == ["test/0", "test/0", "test/1", "test/1", "test/2", "test/2"]


@given(known=st.sets(st.integers(min_value=0, max_value=5)))
def test_completing_runs_exactly_what_is_missing(known: set[int]) -> None:
    jobs = plan().jobs()
    trees = [tree_of(job, number / 8) for number, job in enumerate(jobs)]
    ran: list[str] = []

    async def run(missing: Sequence[EpisodeJob], on_finished: OnFinished) -> list[Tree]:
        ran.extend(job.tree_id for job in missing)
        return [trees[jobs.index(job)] for job in missing]

    found = completed(plan(), run, [trees[number] for number in known])
    assert found == trees
    assert ran == [job.tree_id for number, job in enumerate(jobs) if number not in known]


def test_episodes_of_another_plan_are_not_taken_for_ones_own() -> None:
    other = [tree_of(job, 1.0) for job in plan(label="during").jobs()]
    mine = [tree_of(job, 0.0) for job in plan().jobs()]

    async def run(missing: Sequence[EpisodeJob], on_finished: OnFinished) -> list[Tree]:
        assert len(missing) == 6
        return mine

    assert completed(plan(), run, other) == mine


def test_record_counts_rewards_by_task_and_endings_by_episode() -> None:
    # counting to 0 is no task, so DONE at once earns 0 and ends
    chosen = plan(tasks=2, samples=2)
    record = record_evaluation(chosen, play(chosen), step=5, seconds=1.5)
    assert record.rewards == {"test/0": (0.0, 0.0), "test/1": (0.0, 0.0)}
    assert record.endings == {"TERMINATED": 4}
    assert (record.step, record.seconds, record.costs["turns"], record.costs["tokens_generated"]) == (5, 1.5, 1.0, 5.0)
    assert successes_of(record.rewards, record.success_at) == {"test/0": [False, False], "test/1": [False, False]}


def test_failed_episode_is_none_and_keeps_its_place() -> None:
    chosen = plan(tasks=2, samples=1)
    bad = chosen.tasks[1].prompt

    def answer(request: GenerateRequest) -> tuple[int, ...] | Exception:
        return PolicyFailure("gone") if bad in "".join(show(request.token_ids)) else said("DONE")

    record = evaluated(chosen, answer, concurrency=2).record
    assert record.rewards == {"test/0": (0.0,), "test/1": (None,)}
    assert successes_of(record.rewards, record.success_at) == {"test/0": [False], "test/1": [None]}
    assert record.endings == {"TERMINATED": 1, "ERROR_POLICY": 1}


def test_success_is_a_reward_of_at_least_the_mark() -> None:
    record = EvalRecord(
        env_id="e", label="l", step=0, temperature=0.0, success_at=0.5, rewards={"t": (0.49, 0.5, None, 1.0)},
        endings={}, costs={}, seconds=0.0,
    )  # fmt: skip
    assert successes_of(record.rewards, record.success_at) == {"t": [False, True, None, True]}


def test_record_comes_back_from_json() -> None:
    chosen = plan(tasks=2, samples=1)
    record = record_evaluation(chosen, play(chosen), step=5, seconds=1.5)
    assert EvalRecord.from_json(record.to_json()) == record


def test_supply_that_lies_about_its_size_is_refused() -> None:
    class Short(Repeats):
        def size(self, split: Split) -> int:
            return 10_000

    with pytest.raises(InvalidInput):
        held_out_tasks(Short(), 5000)


def test_evaluation_of_prompts_that_do_not_fit_the_context_stops_and_says_so() -> None:
    told = r"prompts must fit agent.max_context_tokens, got none of 6; that of task .* has \d+ tokens \(the first epi"
    with pytest.raises(RunError, match=told):
        evaluated(plan(), lambda request: said("DONE"), max_context_tokens=5)


def test_prompts_are_judged_together_and_a_reply_that_is_cut_is_none_that_is_too_long() -> None:
    fits = evaluated(plan(), lambda request: said("DONE")).trees[0]
    too_long = replace(fits, nodes=(replace(fits.nodes[0], ending=Ending.TRUNCATED_TOKENS),))
    check_prompts([], where="test")
    check_prompts([fits, too_long], where="test")
    with pytest.raises(RunError, match="got none of 2"):
        check_prompts([too_long, too_long], where="test")
