"""Many episodes at once: order, bounds, failures that stay inside their episode, determinism, cancellation."""

import asyncio
import gc
import json
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from envgym import Action, Ending, Reply, Scored, Split, Task
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.agents.rollout.driver import run_episode, run_oracle_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.core.segments import Origin
from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, PolicyFailure
from tests.support.parrots import CALL, Parrot, char_agent, parrot_job, run_episodes, said
from tests.support.toys import Counter

SAMPLING = Sampling()


def zero() -> float:
    return 0.0


def jobs(count: int, make_env: Callable[[], Parrot] = Parrot) -> list[EpisodeJob]:
    return [parrot_job(make_env, seed=index, tree_id=f"t{index}") for index in range(count)]


def by_seed(request: GenerateRequest) -> tuple[int, ...]:
    """Say one of four things that the seed chooses, and leave in one turn of four."""
    return said(("a", CALL, "<tool_call>{", "bye")[request.seed % 4])


class Slow(ScriptedPolicy):
    """Answers out of order: the later a request's seed in the round, the sooner."""

    in_flight = 0
    most = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        for _ in range(request.seed % 7):
            await asyncio.sleep(0)
        self.in_flight -= 1
        return await super().generate(request)


def run(episode_jobs: list[EpisodeJob], policy: ScriptedPolicy, *, concurrency: int = 4) -> list[Tree]:
    return asyncio.run(run_episodes(episode_jobs, char_agent(), policy, concurrency=concurrency, clock=zero))


def test_a_tree_keeps_its_prompt_as_messages_with_the_tools_also_in_json() -> None:
    (tree,) = run([parrot_job(lambda: Parrot(system_prompt="S"))], ScriptedPolicy(by_seed))
    assert [(message.role.value, message.content) for message in tree.messages] == [("system", "S"), ("user", "Q")]
    assert [tool.name for tool in tree.tools] == ["look"]
    read = tree_from_json(json.loads(json.dumps(tree_to_json(tree))))
    assert (read.messages, read.tools) == (tree.messages, tree.tools)


def test_an_episode_whose_reset_failed_has_no_prompt() -> None:
    (tree,) = run([parrot_job(failing)], ScriptedPolicy(by_seed))
    assert (tree.messages, tree.tools) == ((), ())


def failing() -> Parrot:
    raise RuntimeError("no perch")


def test_trees_come_back_in_the_order_of_the_jobs() -> None:
    trees = run(jobs(20), Slow(by_seed))
    assert [tree.id for tree in trees] == [f"t{index}" for index in range(20)]
    assert [tree.seed for tree in trees] == list(range(20))


def test_same_seeds_give_same_trees_at_every_concurrency() -> None:
    expected = run(jobs(20), ScriptedPolicy(by_seed), concurrency=1)
    assert len({len(tree.nodes) for tree in expected}) > 3, "episodes of different lengths"
    for concurrency in (2, 7, 20, 50):
        assert run(jobs(20), Slow(by_seed), concurrency=concurrency) == expected


def test_concurrency_is_a_bound_and_is_reached() -> None:
    policy = Slow(by_seed)
    run(jobs(30), policy, concurrency=5)
    assert policy.most == 5
    with pytest.raises(InvalidInput, match="concurrency must be at least 1, got 0"):
        run(jobs(1), policy, concurrency=0)


@pytest.mark.parametrize("callers, during", [(700, 500_000), (0, 0), (900_000, 900_000)])
def test_a_run_collects_garbage_less_often_and_leaves_the_callers_threshold(callers: int, during: int) -> None:
    seen = []

    def answer(request: GenerateRequest) -> tuple[int, ...]:
        seen.append(gc.get_threshold())
        return by_seed(request)

    before = gc.get_threshold()
    try:
        gc.set_threshold(callers, 11, 12)
        run(jobs(3), ScriptedPolicy(answer))
        assert set(seen) == {(during, 11, 12)}
        assert gc.get_threshold() == (callers, 11, 12)
    finally:
        gc.set_threshold(*before)


def test_no_jobs_give_no_trees() -> None:
    assert run([], ScriptedPolicy([])) == []


def test_a_policy_that_answers_at_once_is_asked_without_a_task_per_turn() -> None:
    async def count() -> int:
        seen: set[object] = set()

        def answer(request: GenerateRequest) -> tuple[int, ...]:
            seen.add(asyncio.current_task())
            return by_seed(request)

        await run_episodes(jobs(10), char_agent(), ScriptedPolicy(answer), concurrency=1)
        return len(seen)

    assert asyncio.run(count()) == 1


# ---- failures stay inside their episode -----------------------------------------------------------------------------


class NoReset(Parrot):
    def begin(self, task: Task) -> str:
        raise ConnectionError("no world")


def no_env() -> Parrot:
    raise OSError("no disk")


@pytest.mark.parametrize(
    "make_env, reason",
    [
        (NoReset, "reset of NoReset failed: ConnectionError: no world"),
        (no_env, "make failed: OSError: no disk"),
    ],
)
def test_an_env_that_cannot_start_is_an_episode_with_an_error(make_env: Callable[[], Parrot], reason: str) -> None:
    good, bad = jobs(1)[0], replace(jobs(1)[0], make_env=make_env, tree_id="bad")
    trees = run([good, bad, replace(good, tree_id="after")], ScriptedPolicy(lambda _: said("bye")))
    assert [trajectories(tree)[0].ending for tree in trees] == [
        Ending.TERMINATED,
        Ending.ERROR_ENV,
        Ending.TERMINATED,
    ]
    (root,) = trees[1].nodes
    assert (root.ending, root.error, root.edge.segments) == (Ending.ERROR_ENV, reason, ())


def test_an_env_that_cannot_start_tells_its_line_once_not_in_every_episode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Parrot):
        def begin(self, task: Task) -> str:
            raise LookupError("no world")

    run(jobs(11, Broken), ScriptedPolicy([]))
    first, tenth = caplog.records
    assert f'File "{__file__}", line {Broken.begin.__code__.co_firstlineno + 1}, in begin' in first.getMessage()
    assert tenth.getMessage().endswith("the reward of the episode is invalid: LookupError, 10 times so far")


class Undressed(Parrot):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, object]]:  # type: ignore[override]  # the fault under test
        return "", 0.0, False, False, {}


def test_a_turn_without_a_record_is_a_failure_of_the_env() -> None:
    (tree,) = run(jobs(1, Undressed), ScriptedPolicy([said("a")]))
    (trajectory,) = trajectories(tree)
    assert trajectory.ending is Ending.ERROR_ENV
    assert trajectory.num_sampled == 2, "what was sampled before is kept"


class Untidy(Parrot):
    def close(self) -> None:
        raise OSError("stuck")


def test_a_close_that_fails_is_logged_and_the_episode_stands(caplog: pytest.LogCaptureFixture) -> None:
    (tree,) = run(jobs(1, Untidy), ScriptedPolicy([said("bye")]))
    assert trajectories(tree)[0].reward == Scored(value=0.25)
    assert "close failed: OSError: stuck of episode t0" in caplog.text


def test_policy_failures_of_any_kind_are_recorded_as_such() -> None:
    policy = ScriptedPolicy([PolicyFailure("engine died"), KeyError("x"), said("bye")])
    trees = run(jobs(3), policy, concurrency=1)
    leaves = [tree.nodes[tree.leaves[0]] for tree in trees]
    assert [leaf.ending for leaf in leaves] == [Ending.ERROR_POLICY, Ending.ERROR_POLICY, Ending.TERMINATED]
    assert [leaf.error for leaf in leaves] == ["engine died", "generation failed: KeyError: 'x'", None]


def test_an_error_of_the_callers_own_callback_ends_the_run() -> None:
    def refuse(tree: Tree) -> None:
        raise ZeroDivisionError(tree.id)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_episodes(jobs(5), char_agent(), Slow(by_seed), concurrency=3, on_finished=refuse))


def test_every_finished_episode_is_reported_once() -> None:
    seen: list[str] = []
    asyncio.run(
        run_episodes(
            jobs(9),
            char_agent(),
            Slow(by_seed),
            concurrency=3,
            on_finished=lambda tree: seen.append(tree.id),
        )
    )
    assert sorted(seen) == [f"t{index}" for index in range(9)]


# ---- threads and cancellation ---------------------------------------------------------------------------------------


class Waiting(Parrot):
    """Waits as a sandbox would, and notes which threads called it."""

    blocking = True
    threads: set[tuple[int, int]] = set()  # noqa: RUF012  # shared on purpose
    open_envs: set[int] = set()  # noqa: RUF012  # shared on purpose

    def begin(self, task: Task) -> str:
        self._note()
        self.open_envs.add(id(self))
        return super().begin(task)

    def respond(self, action: Action) -> Reply:
        self._note()
        return super().respond(action)

    def close(self) -> None:
        self._note()
        self.open_envs.discard(id(self))

    def _note(self) -> None:
        self.threads.add((id(self), threading.get_ident()))


def test_a_blocking_env_has_one_thread_of_its_own() -> None:
    Waiting.threads.clear()
    made: list[Waiting] = []

    def make() -> Waiting:
        made.append(Waiting())
        return made[-1]

    trees = run(jobs(6, make), ScriptedPolicy(by_seed), concurrency=3)
    assert trees == run(jobs(6), ScriptedPolicy(by_seed), concurrency=3)
    assert len(Waiting.threads) == len(made) == 6, "one (env, thread) pair each"
    assert threading.get_ident() not in {thread for _, thread in Waiting.threads}
    assert not Waiting.open_envs


def test_cancellation_closes_every_env_and_leaves_no_task() -> None:
    async def cancelled() -> int:
        never = asyncio.Event()

        class Stuck(ScriptedPolicy):
            """Never answers."""

            async def generate(self, request: GenerateRequest) -> Generation:
                await never.wait()
                raise AssertionError

        closed: list[str] = []

        class Closing(Parrot):
            def close(self) -> None:
                closed.append("closed")

        run_task = asyncio.create_task(run_episodes(jobs(4, Closing), char_agent(), Stuck([]), concurrency=4))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        run_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run_task
        assert closed == ["closed"] * 4
        return len(asyncio.all_tasks())

    assert asyncio.run(cancelled()) == 1


# ---- the oracle -----------------------------------------------------------------------------------------------------


def test_the_oracle_speaks_in_tokens_that_train() -> None:
    tree = asyncio.run(run_oracle_episode(parrot_job(), char_agent(), clock=zero))
    (trajectory,) = trajectories(tree)
    sampled = [s for turn in trajectory.turns for s in turn.segments if s.origin is Origin.POLICY]
    assert [s.token_ids for s in sampled] == [said(CALL), said("bye")]
    assert [(set(s.behavior_logprobs or ()), s.policy_version) for s in sampled] == [({0.0}, 0), ({0.0}, 0)]
    assert trajectory.ending is Ending.TERMINATED


def test_the_oracle_of_a_stateful_env_reaches_its_optimum() -> None:
    task = Counter.tasks.task(Split.TRAIN, 0)
    job = EpisodeJob(make_env=Counter, task=task, seed=3, tree_id="t", env_id="counter")
    (trajectory,) = trajectories(asyncio.run(run_oracle_episode(job, char_agent())))
    assert trajectory.reward == Scored(value=1.0)


class Dumb(Parrot):
    def oracle(self) -> str:
        raise LookupError("no idea")


def test_an_oracle_that_fails_is_a_failure_of_the_env() -> None:
    (trajectory,) = trajectories(asyncio.run(run_oracle_episode(parrot_job(Dumb), char_agent())))
    assert trajectory.ending is Ending.ERROR_ENV


def test_one_episode_equals_the_same_episode_among_many() -> None:
    alone = asyncio.run(run_episode(jobs(5)[3], char_agent(), ScriptedPolicy(by_seed), sampling=SAMPLING, clock=zero))
    assert alone == run(jobs(5), Slow(by_seed))[3]


def test_members_of_a_group_begin_alike_and_differ_in_what_they_sample() -> None:
    task = Counter.tasks.task(Split.TRAIN, 0)
    group = [
        EpisodeJob(make_env=Counter, task=task, seed=3, policy_seed=member, tree_id=f"{member}", env_id="counter")
        for member in range(8)
    ]
    trees = run(group, ScriptedPolicy(by_seed))
    assert len({tree.nodes[0].edge.segments for tree in trees}) == 1
    assert len({tree.nodes[1].edge.segments for tree in trees}) > 1
