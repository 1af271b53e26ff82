"""The processes beside a run's own: which ones its settings ask for, started together, and where they serve.

Addresses are of the processes of now, so they are not in the settings that the run directory keeps: a run that is
resumed starts its processes anew.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from urllib.parse import urlsplit

from envgym.agents.models.loading import device_type, resolve_model
from envgym.agents.policies.backends import server_limits
from envgym.agents.policies.serving.backend import POLICY_SERVERS
from envgym.agents.policies.serving.backend import TOKEN_VARIABLE as POLICY_TOKEN
from envgym.agents.settings import EngineSettings, RunSettings
from envgym.errors import SettingsError
from envgym.runs.files import LOGS, SERVERS, WEIGHTS
from envgym.runtime.membership import server_url
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.log import close_log, is_open, open_log
from envgym.runtime.processes.process import ProcessSpec
from envgym.runtime.processes.restarts import RestartPolicy
from envgym.runtime.processes.supervision import Deadlines, checking_health
from envgym.serving.wire import TOKEN_VARIABLE as ENV_TOKEN
from envgym.serving.wire import encode
from envgym.trainer.launch.endpoints import Endpoints
from envgym.trainer.launch.placement import (
    ENV_SERVER,
    LEARNER,
    POLICY_SERVER,
    ROLLOUT_WORKER,
    Placed,
    gpus_of_servers,
    placed,
    roles_of,
    visible_gpus,
)
from envgym.trainer.launch.server_membership import (
    StartedServers,
    following,
    named_env_servers,
    named_policy_servers,
)
from envgym.trainer.launch.settings import LaunchSettings
from envgym.trainer.launch.workers.addresses import TOKEN_VARIABLE as WORKER_TOKEN
from envgym.trainer.launch.workers.addresses import WorkerAddresses
from envgym.trainer.launch.workers.checks import check_settings
from envgym.trainer.learner.ranks import meeting as ranks
from envgym.trainer.learner.ranks.meeting import Meeting, free_address, is_torchrun
from envgym.trainer.settings import TrainSettings


@contextmanager
def launched(settings: TrainSettings) -> Iterator[Endpoints]:
    """Start the processes of a run for a block, and yield where they serve.

    Raises: SettingsError: the launcher is `static`, and other numbers of addresses are given, or torchrun has started
        another number of ranks. RunError: a process did not start, or died during the block; it says which, how, and
        what to do.
    """
    meeting = meeting_of_torchrun(settings.launch)
    if meeting is not None:
        do = "call envgym.trainer.launch.ranks.follow there, or start `envgym train` with torchrun"
        must = "be 0 where a run is trained"
        SettingsError.unless(not meeting.rank, "RANK", must, meeting.rank, where="environment", do=do)
        launch = settings.launch.model_copy(update={"learners": meeting.size})
        settings = settings.model_copy(update={"launch": launch})
    launch = settings.launch
    check_addresses(settings)
    if not _num_started(launch, meeting):
        policy = named_policy_servers(settings.engine)
        with following(settings.run.path / SERVERS, policy, named_env_servers(settings.envs)) as policy:
            yield Endpoints(policy=policy, meeting=meeting)
        return
    resume = f"envgym train {settings.run.path} --resume"
    folder, run = settings.run.path / LOGS, settings.run.name
    servers = StartedServers(settings.run.path / SERVERS)
    model, roles = settings.model, roles_of(launch, has_ranks=meeting is None)
    with (
        _tokens(ENV_TOKEN, POLICY_TOKEN, WORKER_TOKEN),
        placed(
            launch, roles, run=settings.run.path, model=model, engine=settings.engine
        ) as places,  # nothing is written yet
        _log_of_controller(settings.run),
        Processes(
            folder, run=run, resume=resume, restarts=RestartPolicy(launch.restarts), starter=places.starter
        ) as processes,
        ExitStack() as stack,
    ):
        if meeting is None and launch.learners > 1:
            meeting = _meeting(launch.learners, places)
            stack.callback(meeting.leave)
        processes.start(process_specs(settings, meeting, hosts=places.hosts))
        ready = processes.wait_ready(timeout_s=launch.start_timeout_s)
        urls = {role: server_url(str(announced["url"])) for role, announced in ready.items() if "url" in announced}
        workers = WorkerAddresses({role: urls.pop(role) for role in list(urls) if role.startswith(ROLLOUT_WORKER)})
        servers.urls.update(urls)
        weights = stack.enter_context(_weights_for_all(settings.run.path)) if launch.launcher == "ray" else None
        endpoints = endpoints_of(settings, urls, weights=weights)
        listed, start_s = endpoints.env_servers or named_env_servers(settings.envs), launch.start_timeout_s
        policy = stack.enter_context(
            following(settings.run.path / SERVERS, endpoints.policy, listed, start_s=start_s if urls else None)
        )

        def note(role: str, announced: Mapping[str, object] | None) -> None:
            (workers if role.startswith(ROLLOUT_WORKER) else servers).note(role, announced)

        stack.enter_context(processes.restarting(note))
        deadlines = Deadlines(launch.health_timeout_s, launch.start_timeout_s)
        tokens = {ENV_SERVER: ENV_TOKEN, POLICY_SERVER: POLICY_TOKEN, ROLLOUT_WORKER: WORKER_TOKEN}
        stack.enter_context(checking_health(processes, deadlines, tokens))
        yield replace(
            endpoints,
            policy=policy,
            meeting=meeting,
            workers=workers if launch.rollout_workers else None,
            device=None if places.gpu is None else f"cuda:{places.gpu}",
            threads=_own_threads(settings, meeting),
        )


def _meeting(size: int, places: Placed) -> Meeting:
    """Return where this process meets the ranks that it starts: at a file or, on several machines, at its address."""
    if places.host:
        return Meeting.at_address(0, size, free_address(places.host))
    return Meeting.at_file(0, size, f"{mkdtemp(prefix=ranks.FOLDER)}/meeting")


@contextmanager
def _weights_for_all(run: Path) -> Iterator[Path]:
    """Return the directory for new weights, for a block: within that of the run, which all nodes see."""
    weights = run.resolve() / WEIGHTS
    rmtree(weights, ignore_errors=True)
    try:
        yield weights
    finally:
        rmtree(weights, ignore_errors=True)


def meeting_of_torchrun(launch: LaunchSettings) -> Meeting | None:
    """Return where the ranks meet that torchrun has started, this process one of them; None: it has started none.

    Raises: SettingsError: `launch.learners` says another number, or ranks are to be there with the launcher `static`.
    """
    if not is_torchrun() and (launch.launcher != "static" or launch.learners == 1):
        return None
    meeting = Meeting.of_torchrun()
    must, do = f"be the {meeting.size} that torchrun has started", "leave it out"
    SettingsError.unless(
        launch.learners in (1, meeting.size), "launch.learners", must, launch.learners, where="launch", do=do
    )
    return meeting


def _num_started(launch: LaunchSettings, meeting: Meeting | None) -> int:
    """Return how many processes this one starts: no ranks where torchrun has."""
    return launch.num_started - (launch.learners - 1 if meeting is not None and launch.launcher != "static" else 0)


@contextmanager
def _tokens(*variables: str) -> Iterator[None]:
    """Let environment variables hold a token each, where the processes that are started, and their clients, find it."""
    new = [name for name in variables if not os.environ.get(name)]
    os.environ.update({name: secrets.token_urlsafe(24) for name in new})
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


@contextmanager
def _log_of_controller(run: RunSettings) -> Iterator[None]:
    """Let this process, whose log the processes beside it join, have one too, unless it has one already."""
    if is_open():
        yield
        return
    open_log(run.path / LOGS / "controller.jsonl", run=run.name, role="controller")
    try:
        yield
    finally:
        close_log()


def process_specs(
    settings: TrainSettings, meeting: Meeting | None = None, *, hosts: Mapping[str, str] | None = None
) -> list[ProcessSpec]:
    """Return the processes that a run starts.

    Args:
        settings: of the run.
        meeting: of the ranks, which are started but for the first one, unless torchrun has started them.
        hosts: role -> address on which it listens; it listens to its machine alone where none is given.
    """
    launch, env_ids = settings.launch, dict.fromkeys(env.id for env in settings.envs if not env.servers)
    commands = {
        ENV_SERVER: (launch.env_servers, ("serve", *env_ids, *_env_rights(settings))),
        POLICY_SERVER: (launch.servers, _policy_server(settings) if launch.servers else ()),
        ROLLOUT_WORKER: (launch.rollout_workers, ("rollout-worker",)),
    }
    gpus = [] if hosts else visible_gpus(settings.engine.device)  # a cluster gives each its own
    of_servers = gpus_of_servers(launch, gpus, each=settings.engine.tensor_parallel) if gpus else []
    places = {f"{POLICY_SERVER}-{number}": {"CUDA_VISIBLE_DEVICES": gpu} for number, gpu in enumerate(of_servers)}
    specs = [
        ProcessSpec(
            role,
            (*command, *(("--host", hosts[role]) if hosts else ()), "--port", "0"),
            is_restarted=True,
            environment=places.get(role, {}),
        )
        for kind, (count, command) in commands.items()
        for role in (f"{kind}-{number}" for number in range(count))
    ]
    if meeting is not None and (meeting.file or meeting.address):
        specs += [_learner_rank(settings, meeting, rank) for rank in range(1, meeting.size)]
    return specs


def _env_rights(settings: TrainSettings) -> list[str]:
    """Return the options that let a run's environment servers make what its settings name, and nothing else."""
    accepted: dict[str, None] = {}
    for env in settings.envs:
        if env.settings and not env.servers:
            with suppress(TypeError, ValueError):  # settings without a form in JSON, which the client refuses
                accepted[f"{env.id}={encode(env.settings).decode()}"] = None
    return [*(word for text in accepted for word in ("--accept", text)), "--client-tasks"]


def _learner_rank(settings: TrainSettings, meeting: Meeting, rank: int) -> ProcessSpec:
    """Return a rank of the learner that follows this process; it is ready when it waits for the others."""
    launch, engine = settings.launch, settings.engine
    options: dict[str, object] = {
        "rank": rank,
        "of": meeting.size,
        "meeting": meeting.file or meeting.address,
        "device": engine.device,
    }
    options |= {"threads": _threads(settings, LEARNER), "timeout": launch.rank_timeout_s}
    return ProcessSpec(f"{LEARNER}-{rank}", ("learner-rank", *_words(options)), ends_itself=True)


def _policy_server(settings: TrainSettings) -> tuple[str, ...]:
    """Return the command of a server that begins with the model's weights. Raises: SettingsError: no vLLM works."""
    model, engine, kind = settings.model, settings.engine, settings.launch.server_engine
    threads, dtype = _threads(settings, POLICY_SERVER), model.on(device_type(engine.device)).sampler_dtype
    options: dict[str, object] = {"dtype": dtype, "device": engine.device, "threads": threads}
    options |= {"max-batch": engine.max_batch, "adapter": model.adapter, "tokenizer": model.tokenizer}
    if kind == "vllm":
        import torch  # heavy, as what follows

        from envgym.agents.policies.vllm.engine import check_installed

        check_installed(torch.__version__)
        options |= {"cache-gib": engine.cache_gib, "max-context": engine.max_context}
        options |= {"tensor-parallel": engine.tensor_parallel}
    arguments = [word for name, value in engine.vllm.items() for word in ("--vllm", f"{name}={json.dumps(value)}")]
    name = str(resolve_model(model.name, tiny=model.tiny))
    return ("policy-server", name, "--engine", kind, *_words(options), *arguments)


def _words(options: Mapping[str, object]) -> list[str]:
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]


def _threads(settings: TrainSettings, kind: str) -> int:
    """Return the CPU threads of a process with a model, where the settings name none: its CPUs, or a share of them."""
    launch, ray = settings.launch, settings.launch.ray
    if settings.engine.threads:
        return settings.engine.threads
    num_workers = settings.engine.tensor_parallel
    if launch.launcher == "ray":
        return max(1, int(ray.learner_cpus if kind == LEARNER else ray.server_cpus / num_workers))
    return max(1, (os.cpu_count() or 1) // (launch.learners + launch.servers * num_workers))


def _own_threads(settings: TrainSettings, meeting: Meeting | None) -> int | None:
    """Return the threads of the run's own process: beside ranks, and on a cluster, it has those of a rank."""
    has_ranks = meeting is not None and not is_torchrun()
    return _threads(settings, LEARNER) if has_ranks or settings.launch.launcher == "ray" else None


def endpoints_of(settings: TrainSettings, urls: Mapping[str, str], *, weights: Path | None = None) -> Endpoints:
    """Sort the addresses of the processes that a run has started.

    Args:
        settings: of the run.
        urls: role of a process -> its address.
        weights: directory for new weights, which policy servers see, too; None: a temporary one of this machine.
    """
    env_servers, servers = (
        tuple(url for role, url in urls.items() if role.startswith(kind)) for kind in (ENV_SERVER, POLICY_SERVER)
    )
    if not servers:
        return Endpoints(env_servers=env_servers, policy=named_policy_servers(settings.engine))
    policy = replace(server_limits(settings.engine).endpoints(), urls=servers, transport=settings.launch.transport)
    return Endpoints(env_servers=env_servers, policy=policy if weights is None else replace(policy, weights=weights))


def check_addresses(settings: TrainSettings) -> None:
    """See that a run finds the processes that it asks for. Raises: SettingsError: it does not."""
    check_settings(settings.launch, settings.engine, settings.agent)
    launch, backend = settings.launch, settings.engine.backend
    of_envs = {urlsplit(url).netloc for env in settings.envs for url in env.servers}
    of_policy = set(backend.settings.get("servers", ())) if backend.name == POLICY_SERVERS else set()
    if launch.launcher == "static":
        for key, place, addresses in (("env_servers", "envs", of_envs), ("servers", "engine.backend", of_policy)):
            count = getattr(launch, key)
            what, do = f"addresses in {place}", f"give servers in {place}, or change it"
            must = f"be {count}, as launch.{key} is, with launcher static"
            SettingsError.unless(len(addresses) == count, what, must, len(addresses), where="launch", do=do)
        return
    if launch.env_servers and all(env.servers for env in settings.envs):
        do = "leave launch.env_servers at 0, or leave out the servers of an env"
        must = "be 0 where every env names its servers"
        raise SettingsError.of("launch.env_servers", must, launch.env_servers, where="launch", do=do)
    if launch.servers:
        _check_limits(settings.engine)


def _check_limits(engine: EngineSettings) -> None:
    """See that a run which starts policy servers says of them no more than limits. Raises: SettingsError: it does."""
    backend = engine.backend
    where, must = "launch.servers", "be transformers, or policy_servers with limits, where policy servers are started"
    do = "leave launch.servers at 0, or leave engine.backend out"
    SettingsError.unless(
        backend.name in ("transformers", POLICY_SERVERS), "engine.backend", must, backend.name, where=where, do=do
    )
    of_run = sorted({"servers", "token_env", "transport"} & backend.settings.keys())
    do = "leave it out: the run knows its servers, and launch.transport says how weights get there"
    must = f"have no {' and no '.join(of_run)} where policy servers are started"
    SettingsError.unless(
        backend.name != POLICY_SERVERS or not of_run, "engine.backend", must, backend.settings, where=where, do=do
    )
    server_limits(engine)
