"""Where the processes beside a run are started: on this machine, or placed on the nodes of a cluster."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from envgym.agents.models.loading import resolve_model
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.errors import SettingsError
from envgym.runtime.processes.handles import LocalStarter, ProcessStarter
from envgym.runtime.ray.placement import Bundle, PlacementRequest
from envgym.runtime.ray.starter import check_installed, placed_by_ray
from envgym.trainer.launch.settings import LaunchSettings, RaySettings

ENV_SERVER: Final = "env-server"
POLICY_SERVER: Final = "policy-server"
ROLLOUT_WORKER: Final = "rollout-worker"
LEARNER: Final = "learner"
CONTROLLER: Final = "controller"


class Placed(NamedTuple):
    """Where processes are started, and by whom."""

    starter: ProcessStarter
    hosts: Mapping[str, str] = MappingProxyType({})
    """Role -> address of its machine; empty: all are on this one."""
    host: str = ""
    """Address by which those machines reach this process; empty as above."""
    gpu: int | None = None
    """Number of the GPU that is this process's, among those that it sees; None: as the settings say."""


def roles_of(launch: LaunchSettings, *, has_ranks: bool) -> list[str]:
    """Return the names of the processes that a run starts.

    Args:
        launch: which these are.
        has_ranks: whether learner ranks are among them; else torchrun has started those.
    """
    counts = {ENV_SERVER: launch.env_servers, POLICY_SERVER: launch.servers, ROLLOUT_WORKER: launch.rollout_workers}
    roles = [f"{kind}-{number}" for kind, count in counts.items() for number in range(count)]
    return roles + [f"{LEARNER}-{rank}" for rank in range(1, launch.learners) if has_ranks]


@contextmanager
def placed(
    launch: LaunchSettings, roles: list[str], *, run: Path, model: ModelSettings, engine: EngineSettings
) -> Iterator[Placed]:
    """Find a place for the processes of a run for a block.

    Args:
        launch: which launcher, and what each process takes.
        roles: of the processes.
        run: directory of the run.
        model: which servers and learner ranks load.
        engine: the device on which they compute, and the GPUs of a policy server.

    Raises: SettingsError: a cluster cannot run them.
    """
    if launch.launcher != "ray":
        yield Placed(LocalStarter())
        return
    check_installed()
    ray = launch.ray
    request = PlacementRequest(
        address=ray.address,
        strategy=ray.strategy,
        bundles=bundles_of(launch.ray, roles, model=model, engine=engine),
        directory=os.getcwd(),
        run=str(_existing(run.resolve())),
        timeout_s=ray.timeout_s,
        clock_tolerance_s=ray.clock_tolerance_s,
    )
    with placed_by_ray(request) as starter:
        placement = starter.placement
        yield Placed(starter, placement.hosts, placement.host, _visible_number(placement.gpus))


def bundles_of(
    ray: RaySettings, roles: list[str], *, model: ModelSettings, engine: EngineSettings
) -> tuple[Bundle, ...]:
    """The share of their nodes that this process and those of the given roles take.

    Raises: SettingsError: a policy server would have fewer GPUs than its weights are split over.
    """
    path, is_cuda, size = resolve_model(model.name, tiny=model.tiny), _is_cuda(engine.device), engine.tensor_parallel
    learner = (ray.learner_cpus, float(is_cuda) if ray.learner_gpus is None else ray.learner_gpus)
    server = (ray.server_cpus, float(size * is_cuda) if ray.server_gpus is None else ray.server_gpus)
    if is_cuda and size > 1:
        must = f"be at least {size}, as engine.tensor_parallel is"
        SettingsError.unless(
            server[1] >= size, "launch.ray.server_gpus", must, server[1], where="launch", do="raise it"
        )
    takes = {LEARNER: learner, POLICY_SERVER: server, ENV_SERVER: (ray.env_server_cpus, ray.env_server_gpus)}
    takes[ROLLOUT_WORKER] = (ray.worker_cpus, 0.0)
    bundles = [Bundle(role=CONTROLLER, cpus=learner[0], gpus=learner[1])]
    for role in roles:
        kind = role.rpartition("-")[0]
        cpus, gpus = takes[kind]
        needs = kind != ENV_SERVER
        directories = (str(Path(path).resolve()),) if needs and os.path.isdir(path) else ()
        bundles.append(Bundle(role=role, cpus=cpus, gpus=gpus, directories=directories, sees_run=needs))
    return tuple(bundles)


def gpus_of_servers(launch: LaunchSettings, visible: Sequence[str], *, each: int = 1) -> list[str]:
    """Return the GPUs of each policy server that is started on this machine, as `CUDA_VISIBLE_DEVICES` names them.

    Learner ranks use the first GPUs. Servers use the remaining GPUs in turns, or those of the ranks where too few
    remain; with the transport `ipc` they use those of the ranks, whose memory they share. Servers of several GPUs do
    not share them with each other.

    Args:
        launch: how many ranks and servers there are.
        visible: the GPUs of this machine.
        each: GPUs of a server.

    Raises: SettingsError: NCCL needs a GPU for each process, a server needs more GPUs than there are, servers of
        several GPUs would share them, or such servers would read weights by `ipc`.
    """
    launch.check_transport(gpus_each=each)
    num_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", launch.learners))  # torchrun starts some on each machine
    of_ranks, others = visible[:num_ranks], visible[num_ranks:]
    if launch.transport == "nccl" and len(others) < launch.servers * each:
        of_each = "one for each rank and server" if each == 1 else f"one for each rank and {each} for each server"
        must = f"be at least {num_ranks + launch.servers * each} for transport nccl, {of_each}"
        do = "lower launch.servers or launch.learners, or set launch.transport=files"
        raise SettingsError.of("GPUs", must, len(visible), where="launch", do=do)
    must, do = f"be at least {each}, as engine.tensor_parallel is", "lower it"
    SettingsError.unless(len(visible) >= each, "GPUs", must, len(visible), where="launch", do=do)
    shared = of_ranks if len(of_ranks) >= each else visible
    gpus = shared if launch.transport == "ipc" or len(others) < each else others
    places = [",".join(gpus[first : first + each]) for first in range(0, len(gpus) - each + 1, each)]
    must = f"be at most {len(places)}, as {each} of {len(gpus)} GPUs are for each server (engine.tensor_parallel)"
    do = "lower launch.servers or engine.tensor_parallel"
    fits = each == 1 or launch.servers <= len(places)
    SettingsError.unless(fits, "launch.servers", must, launch.servers, where="launch", do=do)
    return [places[number % len(places)] for number in range(launch.servers)]


def visible_gpus(device: str) -> list[str]:
    """Return the GPUs that this process sees, as `CUDA_VISIBLE_DEVICES` names them; none where the device is no GPU."""
    if not _is_cuda(device):
        return []
    import torch  # heavy

    return _named_gpus() or [str(number) for number in range(torch.cuda.device_count())]


def _named_gpus() -> list[str]:
    return [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]


def _is_cuda(device: str) -> bool:
    if device == "auto":
        import torch  # heavy

        return torch.cuda.is_available()
    return device.startswith("cuda")


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.is_dir())


def _visible_number(gpus: tuple[str, ...]) -> int | None:
    """Return which of the GPUs that this process sees is the first of those that it was given."""
    if not gpus:
        return None
    visible = _named_gpus()
    return visible.index(gpus[0]) if gpus[0] in visible else int(gpus[0])
