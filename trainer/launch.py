"""The processes beside a run's own: which ones its settings ask for, started together, and where they serve.

Addresses are of the processes of now, so they are not in the settings that the run directory keeps: a run that is
resumed starts its processes anew.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import NamedTuple
from urllib.parse import urlsplit

from envgym.agents.catalog import POLICY_BACKEND
from envgym.agents.models.loading import resolve_model
from envgym.agents.policies.serving.backend import TOKEN_VARIABLE as POLICY_TOKEN
from envgym.errors import SettingsError
from envgym.files import SERVERS
from envgym.plugins import Choice
from envgym.process_log import FOLDER, WEIGHTS, close_log, is_open, open_log
from envgym.processes import ProcessSpec
from envgym.restarts import RestartRules
from envgym.serving.wire import TOKEN_VARIABLE as ENV_TOKEN
from envgym.supervision import Deadlines, SupervisedProcesses
from envgym.trainer.learner.ranks import meeting as ranks
from envgym.trainer.learner.ranks.meeting import Meeting, free_address, is_torchrun
from envgym.trainer.placement import (
    ENV_SERVER,
    LEARNER,
    POLICY_SERVER,
    Placed,
    gpus_of_servers,
    placed,
    roles_of,
    visible_gpus,
)
from envgym.trainer.server_membership import POLICY_SERVERS, StartedServers, followed
from envgym.trainer.settings import TrainSettings


class Launched(NamedTuple):
    """A run whose processes serve."""

    settings: TrainSettings
    """Of the run, with the addresses at which they serve."""
    meeting: Meeting | None
    """Where the learner ranks meet; None: this process learns alone."""


@contextmanager
def launched(settings: TrainSettings) -> Iterator[Launched]:
    """Start the processes of a run for a block.

    Raises: SettingsError: the launcher is `static`, and other numbers of addresses are given, or torchrun has started
        another number of ranks. RunError: a process did not start, or died during the block; it says which, how, and
        what to do.
    """
    meeting = meeting_of_torchrun(settings)
    if meeting is not None:
        do = "call envgym.trainer.ranks.follow there, or start `envgym train` with torchrun"
        must = "be 0 where a run is trained"
        SettingsError.unless(not meeting.rank, "RANK", must, meeting.rank, where="environment", do=do)
        launch = settings.launch.model_copy(update={"learners": meeting.size})
        settings = settings.model_copy(update={"launch": launch})
    launch = settings.launch
    check_addresses(settings)
    if not _num_started(settings, meeting):
        with followed(settings) as settings:
            yield Launched(settings, meeting)
        return
    resume = f"envgym train {settings.run.path} --resume"
    folder, run = settings.run.path / FOLDER, settings.run.name
    servers = StartedServers(settings.run.path / SERVERS)
    with (
        _tokens(ENV_TOKEN, POLICY_TOKEN),
        placed(settings, roles_of(launch, has_ranks=meeting is None)) as places,  # where refused, nothing is written
        _log_of_controller(settings),
        SupervisedProcesses(folder, run=run, resume=resume, starter=places.starter) as processes,
        ExitStack() as held,
    ):
        if meeting is None and launch.learners > 1:
            meeting = _meeting(launch.learners, places)
            held.callback(meeting.leave)
        processes.start(process_specs(settings, meeting, hosts=places.hosts))
        settings = _with_threads(settings, has_ranks=meeting is not None and not is_torchrun())
        ready = processes.wait_ready(timeout_s=launch.start_timeout_s)
        urls = {role: str(told["url"]) for role, told in ready.items() if "url" in told}
        servers.urls.update(urls)
        weights = held.enter_context(_weights_for_all(settings)) if launch.launcher == "ray" else None
        settings = with_addresses(settings, urls, weights=weights)
        if places.gpu is not None:
            engine = settings.engine.model_copy(update={"device": f"cuda:{places.gpu}"})
            settings = settings.model_copy(update={"engine": engine})
        settings = held.enter_context(followed(settings, started=urls))
        deadlines = Deadlines(launch.health_timeout_s, launch.start_timeout_s)
        tokens, rules = {ENV_SERVER: ENV_TOKEN, POLICY_SERVER: POLICY_TOKEN}, RestartRules(launch.restarts)
        held.enter_context(processes.supervised(deadlines, tokens, rules=rules, on_serving=servers.note))
        yield Launched(settings, meeting)


def _meeting(size: int, places: Placed) -> Meeting:
    """Return where this process meets the ranks that it starts: at a file or, on several machines, at its address."""
    if places.host:
        return Meeting.at_address(0, size, free_address(places.host))
    return Meeting.at_file(0, size, f"{mkdtemp(prefix=ranks.FOLDER)}/meeting")


@contextmanager
def _weights_for_all(settings: TrainSettings) -> Iterator[Path]:
    """Return the directory for new weights, for a block: within that of the run, which all nodes see."""
    weights = settings.run.path.resolve() / WEIGHTS
    rmtree(weights, ignore_errors=True)
    try:
        yield weights
    finally:
        rmtree(weights, ignore_errors=True)


def meeting_of_torchrun(settings: TrainSettings) -> Meeting | None:
    """Return where the ranks meet that torchrun has started, this process one of them; None: it has started none.

    Raises: SettingsError: `launch.learners` says another number, or ranks are to be there with the launcher `static`.
    """
    launch = settings.launch
    if not is_torchrun() and (launch.launcher != "static" or launch.learners == 1):
        return None
    meeting = Meeting.of_torchrun()
    must, do = f"be the {meeting.size} that torchrun has started", "leave it out"
    SettingsError.unless(
        launch.learners in (1, meeting.size), "launch.learners", must, launch.learners, where="launch", do=do
    )
    return meeting


def _num_started(settings: TrainSettings, meeting: Meeting | None) -> int:
    """Return how many processes this one starts: no ranks where torchrun has."""
    launch = settings.launch
    return launch.num_started - (launch.learners - 1 if meeting is not None and launch.launcher != "static" else 0)


@contextmanager
def _tokens(*variables: str) -> Iterator[None]:
    """Let environment variables hold a token each, where the processes that are started, and their clients, find it."""
    made = [name for name in variables if not os.environ.get(name)]
    os.environ.update({name: secrets.token_urlsafe(24) for name in made})
    try:
        yield
    finally:
        for name in made:
            del os.environ[name]


@contextmanager
def _log_of_controller(settings: TrainSettings) -> Iterator[None]:
    """Let this process, whose log the processes beside it join, have one too, unless it has one already."""
    if is_open():
        yield
        return
    open_log(settings.run.path / FOLDER / "controller.jsonl", run=settings.run.name, role="controller")
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
        ENV_SERVER: (launch.env_servers, ("serve", *env_ids)),
        POLICY_SERVER: (launch.servers, _policy_server(settings) if launch.servers else ()),
    }
    gpus = [] if hosts else visible_gpus(settings.engine.device)  # a cluster gives each its own
    of_servers = gpus_of_servers(launch, gpus) if gpus else []
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
    """Return the command of a server of the run's model; its first weights are those of the model's directory.

    Raises: SettingsError: it is to be vLLM, and none is installed that can be used.
    """
    model, engine, kind = settings.model, settings.engine, settings.launch.server_engine
    threads = _threads(settings, POLICY_SERVER)
    options: dict[str, object] = {"dtype": model.dtype, "device": engine.device, "threads": threads}
    options |= {"max-batch": engine.max_batch, "adapter": model.adapter, "tokenizer": model.tokenizer}
    if kind == "vllm":
        import torch  # heavy, as what follows

        from envgym.agents.policies._vllm_engine import check_installed

        check_installed(torch.__version__)
        options |= {"cache-gib": engine.cache_gib, "max-context": engine.max_context}
    return ("policy-server", str(resolve_model(model.name, tiny=model.tiny)), "--engine", kind, *_words(options))


def _words(options: Mapping[str, object]) -> list[str]:
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]


def _threads(settings: TrainSettings, kind: str) -> int:
    """Return the CPU threads of a process with a model, where the settings name none: its CPUs, or a share of them."""
    launch, ray = settings.launch, settings.launch.ray
    if settings.engine.threads:
        return settings.engine.threads
    if launch.launcher == "ray":
        return max(1, int(ray.learner_cpus if kind == LEARNER else ray.server_cpus))
    return max(1, (os.cpu_count() or 1) // (launch.learners + launch.servers))


def _with_threads(settings: TrainSettings, *, has_ranks: bool) -> TrainSettings:
    """Return the settings of a run's own process: beside ranks, and on a cluster, it has the threads of a rank."""
    if not has_ranks and settings.launch.launcher != "ray":
        return settings
    engine = settings.engine.model_copy(update={"threads": _threads(settings, LEARNER)})
    return settings.model_copy(update={"engine": engine})


def with_addresses(settings: TrainSettings, urls: Mapping[str, str], *, weights: Path | None = None) -> TrainSettings:
    """Return the settings of a run with where its processes serve.

    Args:
        settings: without these addresses.
        urls: role of a process -> its address.
        weights: directory for new weights, which policy servers see, too; None: a temporary one of this machine.
    """
    of_envs, of_policy = (
        tuple(url for role, url in urls.items() if role.startswith(kind)) for kind in (ENV_SERVER, POLICY_SERVER)
    )
    engine = settings.engine
    if of_policy:
        limits = engine.backend.settings if engine.backend.name == POLICY_SERVERS else {}
        given = {**limits, "servers": list(of_policy), "transport": settings.launch.transport}
        given |= {} if weights is None else {"weights": str(weights)}
        backend = Choice.model_validate({"name": POLICY_SERVERS, **given})
        engine = engine.model_copy(update={"backend": backend})
    envs = tuple(env if env.servers else env.model_copy(update={"servers": of_envs}) for env in settings.envs)
    return settings.model_copy(update={"envs": envs, "engine": engine})


def check_addresses(settings: TrainSettings) -> None:
    """See that a run finds the processes that it asks for. Raises: SettingsError: it does not."""
    launch, backend = settings.launch, settings.engine.backend
    of_envs = {urlsplit(url).netloc for env in settings.envs for url in env.servers}
    of_policy = set(backend.settings.get("servers", ())) if backend.name == POLICY_SERVERS else set()
    if launch.launcher == "static":
        for key, place, given in (("env_servers", "envs", of_envs), ("servers", "engine.backend", of_policy)):
            wanted = getattr(launch, key)
            what, do = f"addresses in {place}", f"give servers in {place}, or change it"
            must = f"be {wanted}, as launch.{key} is, with launcher static"
            SettingsError.unless(len(given) == wanted, what, must, len(given), where="launch", do=do)
        return
    if launch.env_servers and all(env.servers for env in settings.envs):
        do = "leave launch.env_servers at 0, or leave out the servers of an env"
        must = "be 0 where every env names its servers"
        raise SettingsError.of("launch.env_servers", must, launch.env_servers, where="launch", do=do)
    if launch.servers:
        _check_limits(settings)


def _check_limits(settings: TrainSettings) -> None:
    """See that a run which starts policy servers says of them no more than limits. Raises: SettingsError: it does."""
    backend = settings.engine.backend
    where, must = "launch.servers", "be transformers, or policy_servers with limits, where policy servers are started"
    do = "leave launch.servers at 0, or leave engine.backend out"
    SettingsError.unless(
        backend.name in ("transformers", POLICY_SERVERS), "engine.backend", must, backend.name, where=where, do=do
    )
    of_run = sorted({"servers", "servers_file", "token_env", "transport"} & backend.settings.keys())
    do = "leave it out: the run knows its servers, and launch.transport says how weights get there"
    must = f"have no {' and no '.join(of_run)} where policy servers are started"
    SettingsError.unless(
        backend.name != POLICY_SERVERS or not of_run, "engine.backend", must, backend.settings, where=where, do=do
    )
    POLICY_BACKEND.build(with_addresses(settings, {POLICY_SERVER: "http://127.0.0.1:0"}).engine.backend)
