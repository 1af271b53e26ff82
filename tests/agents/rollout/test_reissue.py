"""An episode whose environment server went away is begun again once; any other failure stays what it is."""

import asyncio
from contextlib import closing
from typing import Any

import pytest

import envgym
from envgym import Action, Ending, Env, Invalid, Scored, Split
from envgym.agents.evaluation.play import message_player
from envgym.agents.loop.agent import AgentSettings
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.messages import MessagePolicy, MessageReply, MessageRequest
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.reissue import grow_or_reissue
from envgym.agents.search import Chain
from envgym.agents.settings import EvaluationSettings
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.runtime.processes.restarts import REISSUED, failure_counts
from envgym.serving.pool import pool_of
from envgym.serving.server import EnvServer
from tests.support.env_server import COUNTER, redirect, running_server, wait_until
from tests.support.parrots import char_agent, said

GONE = ("127.0.0.1", 9)


class Losing(ScriptedPolicy):
    """Says `go`, then `end`; the server is gone before the end of the first episodes, and is there as others begin."""

    def __init__(self, server: EnvServer, *, losses: int, word: str = "end") -> None:
        super().__init__(lambda request: said(("go", word)[len(self.requests) % 2 == 0]))
        self._client, self._left = pool_of((server.http.url,)).clients[0], losses
        self._place, self._client.reconnect_s = self._client._place, 0.0
        self._id = f"{server.http.url}/{COUNTER}"
        self.num_envs = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        if len(self.requests) % 2 and self._left:
            self._left -= 1
            redirect(self._client, GONE)
            self._client.close_idle()
        return await super().generate(request)

    def make_env(self) -> Env[Any]:
        self.num_envs += 1
        redirect(self._client, self._place)
        return envgym.make(self._id)


def play(policy: Losing, abort: AbortHandle | None = None) -> Trajectory:
    with closing(policy.make_env()) as env:
        task = env.unwrapped.tasks.task(Split.TRAIN, 0)
    policy.num_envs = 0
    job = EpisodeJob(make_env=policy.make_env, task=task, seed=3, tree_id="group/00", env_id=COUNTER)

    async def grow(job: EpisodeJob) -> Tree:
        return await run_episode(job, char_agent(), policy, sampling=Sampling(), abort=abort)

    (episode,) = trajectories(asyncio.run(grow_or_reissue(job, grow, abort)))
    return episode


@pytest.mark.parametrize(
    "losses, num_envs, ending",
    [(0, 1, Ending.TERMINATED), (1, 2, Ending.TERMINATED), (2, 2, Ending.ERROR_ENV), (3, 2, Ending.ERROR_ENV)],
)
def test_an_episode_is_begun_again_exactly_once(losses: int, num_envs: int, ending: Ending) -> None:
    before = failure_counts()
    with running_server(COUNTER) as server:
        policy = Losing(server, losses=losses)
        episode = play(policy)
        redirect(policy._client, policy._place)
        assert (policy.num_envs, episode.ending) == (num_envs, ending)
        assert episode.tree.id == "group/00"
        assert isinstance(episode.reward, Invalid if ending.is_error else Scored)
        assert len({request.seed for request in policy.requests}) == 2  # both attempts sample alike
    assert failure_counts()[REISSUED] - before[REISSUED] == num_envs - 1


class LosingByMessages(MessagePolicy):
    """As `Losing`, in messages."""

    def __init__(self, losing: Losing) -> None:
        self._losing = losing

    async def reply(self, request: MessageRequest) -> MessageReply:
        await self._losing.generate(request)
        word = ("go", "end")[len(self._losing.requests) % 2 == 0]
        return MessageReply(action=Action(word), finish_reason=FinishReason.STOP)


@pytest.mark.parametrize("losses, ending", [(1, Ending.TERMINATED), (2, Ending.ERROR_ENV)])
def test_an_episode_of_messages_is_begun_again_exactly_once(losses: int, ending: Ending) -> None:
    with running_server(COUNTER) as server:
        losing = Losing(server, losses=losses)
        with closing(losing.make_env()) as env:
            task = env.unwrapped.tasks.task(Split.TRAIN, 0)
        losing.num_envs = 0
        job = EpisodeJob(make_env=losing.make_env, task=task, seed=3, tree_id="group/00", env_id=COUNTER)
        policy, settings = LosingByMessages(losing), EvaluationSettings()
        playing = message_player(AgentSettings(), policy, Chain(), settings, concurrency=1)
        (tree,) = asyncio.run(playing([job], lambda tree: None))
        redirect(losing._client, losing._place)
    (episode,) = trajectories(tree)
    assert (losing.num_envs, episode.ending) == (2, ending)


def test_an_episode_whose_env_failed_by_itself_is_not_begun_again() -> None:
    with running_server(COUNTER) as server:
        policy = Losing(server, losses=0, word="fail")
        assert (play(policy).ending, policy.num_envs) == (Ending.ERROR_TOOL_INFRA, 1)


def test_an_episode_that_was_aborted_is_not_begun_again() -> None:
    class Aborting(Losing):
        async def generate(self, request: GenerateRequest) -> Generation:
            generation = await super().generate(request)
            if len(self.requests) == 2:
                asyncio.get_running_loop().call_soon(self.abort)
            return generation

        def abort(self) -> None:
            redirect(self._client, self._place)  # the server is there again, to be told of the end
            abort.abort("late")

    abort = AbortHandle()
    with running_server(COUNTER) as server:
        policy = Aborting(server, losses=1)
        episode = play(policy, abort)
        assert policy.num_envs == 1
        assert episode.ending is Ending.ERROR_ABORTED
        wait_until(lambda: len(server.sessions) == 0)
