"""What a rollout worker has of a run: envs, agent, search, journal, and a policy that follows the servers' weights."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from envgym.agents.loop.agent import Agent, make_agent
from envgym.agents.models.loading import load_model_tokenizer
from envgym.agents.policies.backends import server_limits
from envgym.agents.policies.serving.backend import PolicyEndpoints
from envgym.agents.policies.serving.following import FollowingPolicy
from envgym.agents.policies.serving.identity import expected_model
from envgym.agents.policies.serving.weights_state import WeightsState
from envgym.agents.protocols import Policy
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.search import RolloutContext
from envgym.agents.search.protocol import SEARCH
from envgym.agents.settings import EnvSettings
from envgym.core.tree import Tree
from envgym.errors import RunError
from envgym.runtime.membership import ServerKind, WatchedServers
from envgym.serving.client import RECONNECT_S
from envgym.serving.pool import pool_of
from envgym.trainer.checks.mask_audit import AuditedPolicy, SampledTurn
from envgym.trainer.env_source import EnvSource
from envgym.trainer.launch.workers.wire import TreeTask, WorkerSetup
from envgym.trainer.rollout.journal import ReusedTurns, TurnJournal
from envgym.trainer.rollout.trees import TreeGrower
from envgym.trainer.settings import TrainSettings, train_settings


class PartsResources(ExitStack):
    """Closes what the parts leave open; building that nobody waits for any more stops before its next part."""

    is_abandoned = False
    """Set from any thread."""

    def check_wanted(self) -> None:
        """Raises: RunError: nobody waits for the parts."""
        do = "raise launch.start_timeout_s if the parts of a worker take long"
        must, got = "be waited for until it has ended", "a request that was given up"
        RunError.unless(not self.is_abandoned, "building the parts", must, got, where="rollout worker", do=do)


class WorkerParts:
    """The parts of a run in a worker; a plan is what the run's settings were when groups were begun."""

    def __init__(
        self,
        settings: TrainSettings,
        *,
        plan: int,
        env_sources: dict[str, EnvSource],
        agent: Agent,
        policy: Policy,
        follow: Callable[[WeightsState], None],
        weights: WeightsState,
        journal: TurnJournal | None,
        audits: bool,
        concurrency: int,
    ) -> None:
        """Join the parts.

        Args:
            settings: of the run.
            plan: their number.
            env_sources: by label.
            agent: of these settings.
            policy: samples from the servers.
            follow: makes the policy expect other weights.
            weights: that it expects now.
            journal: that the turns are read from and written to; None: there is none.
            audits: whether `grow` returns what was sampled.
            concurrency: branches under way at a time.
        """
        self._env_sources, self._agent, self._follow, self._weights = env_sources, agent, follow, weights
        self._policy, self._journal, self._audits = policy, journal, audits
        self._slots = asyncio.Semaphore(concurrency)
        self._growers: dict[int, TreeGrower] = {}
        self.add_plan(plan, settings)

    def add_plan(self, plan: int, settings: TrainSettings) -> None:
        """Be ready to grow trees by other settings, too."""
        context = RolloutContext(
            agent=replace(self._agent, settings=settings.agent),
            policy=self._policy,
            sampling=settings.sampling.sampling,
            slots=self._slots,
        )
        search = SEARCH.build(settings.search)
        self._growers[plan] = TreeGrower(
            env_sources=self._env_sources, context=context, search=search, seed=settings.run.seed
        )

    def follow(self, weights: WeightsState) -> None:
        """Sample from other weights from now on, if the run's process has named none that are newer."""
        if weights.revision > self._weights.revision:
            self._weights = weights
            self._follow(weights)
            if self._journal is not None:
                self._journal.close()  # the run's process may have dropped the files

    async def grow(self, task: TreeTask, abort: AbortHandle) -> tuple[Tree, list[SampledTurn]]:
        """Grow a tree; return it with what was sampled for it. Raises: as `TreeGrower`."""
        self.follow(task.weights)
        tree_id, policy = task.order.tree_id, self._policy
        if self._journal is not None:
            for role in {lost.partition("#")[0] for lost in task.replays}:
                self._journal.read_turns_of(role)
            self._journal.begin_tree(tree_id)  # again if the connection broke, and the order was sent again
            policy = self._journal.around(policy, tree_id=tree_id)
        if task.aborted is not None:
            abort.abort(task.aborted)
        sampled: list[SampledTurn] = []
        grower = self._growers[task.plan]
        if self._audits:
            policy = AuditedPolicy(policy, sampled.append)
        grower = replace(grower, context=replace(grower.context, policy=policy))
        tree = await grower(task.order, abort)
        if self._journal is not None:
            self._journal.end_tree(tree_id)
        return tree, sampled

    def take_reused(self) -> ReusedTurns:
        """Return the counts of turns and tokens taken from the journal since the last call."""
        return ReusedTurns() if self._journal is None else self._journal.take_reused()


def build_parts(setup: WorkerSetup, resources: PartsResources, *, worker: str) -> WorkerParts:
    """Build the parts of a worker.

    Args:
        setup: from the run's process.
        resources: closes what outlives the work.
        worker: name of the worker.

    Raises: EnvgymError: a part cannot be built, no policy server can be used, or nobody waits for the parts.
    """
    settings = train_settings(setup.settings)
    list_file = None if setup.list_file is None else Path(setup.list_file)
    if setup.env_servers and list_file is not None:
        watched = WatchedServers(list_file, ServerKind.ENV)
        pool = pool_of(setup.env_servers)
        resources.enter_context(pool.following(watched, wait_s=setup.start_s or RECONNECT_S))
    policy = _follow_servers(settings, setup, list_file)
    resources.callback(policy.close)
    resources.check_wanted()
    journal = None
    if setup.journal is not None:
        version, staleness = setup.weights.version, settings.rollout.staleness
        journal = TurnJournal(Path(setup.journal), run=setup.run, version=version, staleness=staleness, worker=worker)
        resources.callback(journal.close)
    env_sources: dict[str, EnvSource] = {}
    for spec in settings.envs:
        resources.check_wanted()
        env_sources[spec.label] = _env_source(spec, setup.env_servers)
    resources.check_wanted()
    return WorkerParts(
        settings,
        plan=setup.plan,
        env_sources=env_sources,
        agent=make_agent(settings.agent, load_model_tokenizer(settings.model)),
        policy=policy,
        follow=policy.follow,
        weights=setup.weights,
        journal=journal,
        audits=setup.audits,
        concurrency=-(-settings.engine.concurrency // setup.num_workers),
    )


def _env_source(spec: EnvSettings, servers: tuple[str, ...]) -> EnvSource:
    make = spec.maker(servers)
    with closing(make()) as env:
        tasks = env.unwrapped.tasks
    return EnvSource(label=spec.label, env_id=spec.id, weight=spec.weight, make=make, tasks=tasks, held_out=())


def _follow_servers(settings: TrainSettings, setup: WorkerSetup, list_file: Path | None) -> FollowingPolicy:
    servers = server_limits(settings.engine)
    endpoints = PolicyEndpoints(urls=setup.policy_servers, start_s=setup.start_s)
    limits = servers.limits(endpoints)
    share = -(-limits.max_concurrency // setup.num_workers)
    return FollowingPolicy(
        setup.policy_servers,
        transport=setup.transport,
        state=setup.weights,
        expected=expected_model(settings.model),
        token=servers.token(),
        limits=replace(limits, max_concurrency=share),
        servers=None if list_file is None else WatchedServers(list_file, ServerKind.POLICY),
    )
