"""Connects a run to its rollout workers: what they are sent, and what is done with what they return."""

import os
from collections.abc import Callable

from envgym.agents.policies.serving.client import ServedPolicy
from envgym.agents.protocols import Policy
from envgym.core.version import __version__
from envgym.runs.directory import RunDirectory
from envgym.runs.files import LOGS
from envgym.runtime.processes.restarts import count_failure
from envgym.trainer.checks.mask_audit import SampledTurn
from envgym.trainer.launch.endpoints import Endpoints
from envgym.trainer.launch.workers.addresses import TOKEN_VARIABLE
from envgym.trainer.launch.workers.fleet import RolloutWorkers
from envgym.trainer.launch.workers.wire import GrownTree, Json, WorkerSetup
from envgym.trainer.rollout.journal import FOLDER, TurnJournal


def rollout_workers(
    settings: Json,
    endpoints: Endpoints,
    *,
    wait_s: float,
    policy: Policy,
    run: RunDirectory,
    journal: TurnJournal | None,
    record: Callable[[SampledTurn], None] | None,
) -> RolloutWorkers:
    """Return the rollout workers of a run, of which nothing is asked yet.

    Args:
        settings: of the run, as JSON.
        endpoints: the processes beside the run.
        wait_s: longest wait for a worker where none serves.
        policy: of the run, which brings new weights to the policy servers.
        run: directory of the run.
        journal: of the run; the workers write files beside its own.
        record: takes what was sampled, for the mask audit; None: it is not wanted.
    """
    served, addresses = endpoints.policy, endpoints.workers
    assert served is not None, "the settings were checked"
    assert addresses is not None, "the settings ask for workers"
    assert isinstance(policy, ServedPolicy), "it samples from those servers"
    list_file = None if served.list_file is None else str(served.list_file)

    def take(grown: GrownTree) -> None:
        if record is not None:
            for turn in grown.sampled:
                record(turn)
        if journal is not None:
            journal.count_reused(grown.reused)
        for name, count in grown.failures.items():
            count_failure(name, count)

    setup = WorkerSetup(
        version=__version__,
        settings=settings,
        plan=0,
        run=run.id,
        num_workers=len(addresses),
        weights=policy.weights_state,
        policy_servers=served.urls,
        transport=served.transport,
        env_servers=endpoints.env_servers,
        list_file=list_file,
        start_s=served.start_s,
        journal=None if journal is None else str((run.path / FOLDER).resolve()),
        audits=record is not None,
    )
    return RolloutWorkers(
        addresses,
        setup,
        weights=lambda: policy.weights_state,
        on_grown=take,
        token=os.environ.get(TOKEN_VARIABLE),
        logs=run.path / LOGS,
        wait_s=wait_s,
    )
