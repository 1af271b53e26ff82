"""The processes beside a run's own: which ones its settings ask for, started together, and where they serve.

Addresses are of the processes of now, so they are not in the settings that the run directory keeps: a run that is
resumed starts its processes anew.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from envgym.errors import SettingsError
from envgym.process_log import FOLDER, close_log, is_open, open_log
from envgym.processes import Processes, ProcessSpec
from envgym.serving.wire import TOKEN_VARIABLE
from envgym.trainer.settings import TrainSettings

_ENV_SERVER = "env-server"


@contextmanager
def launched(settings: TrainSettings) -> Iterator[TrainSettings]:
    """Start the processes of a run for a block, and yield its settings with the addresses at which they serve.

    Raises: SettingsError: the launcher is `static`, and other numbers of addresses are given. RunError: a process did
        not start, or died during the block; it says which, how, and what to do.
    """
    launch = settings.launch
    check_addresses(settings)
    if not launch.num_started:
        yield settings
        return
    resume = f"envgym train {settings.run.path} --resume"
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    with (
        _log_of_controller(settings),
        Processes(settings.run.path / FOLDER, run=settings.run.name, resume=resume) as processes,
    ):
        processes.start(process_specs(settings, token=token))
        ready = processes.wait_ready(timeout_s=launch.start_timeout_s)
        before = os.environ.get(TOKEN_VARIABLE)
        os.environ[TOKEN_VARIABLE] = token  # where the clients of this process look for it
        try:
            yield with_addresses(settings, {role: str(told["url"]) for role, told in ready.items()})
        finally:
            if before is None:
                del os.environ[TOKEN_VARIABLE]


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


def process_specs(settings: TrainSettings, *, token: str) -> list[ProcessSpec]:
    """Return the processes that a run starts."""
    served = list(dict.fromkeys(env.id for env in settings.envs if not env.servers))
    return [
        ProcessSpec(f"{_ENV_SERVER}-{number}", ("serve", *served, "--port", "0"), {TOKEN_VARIABLE: token})
        for number in range(settings.launch.env_servers)
    ]


def with_addresses(settings: TrainSettings, urls: Mapping[str, str]) -> TrainSettings:
    """Return the settings of a run with where its processes serve.

    Args:
        settings: without these addresses.
        urls: role of a process -> its address.
    """
    servers = tuple(url for role, url in urls.items() if role.startswith(_ENV_SERVER))
    envs = tuple(env if env.servers else env.model_copy(update={"servers": servers}) for env in settings.envs)
    return settings.model_copy(update={"envs": envs})


def check_addresses(settings: TrainSettings) -> None:
    """See that a run finds the processes that it asks for. Raises: SettingsError: it does not."""
    launch, local = settings.launch, [env for env in settings.envs if not env.servers]
    if launch.launcher == "static":
        given = {urlsplit(url).netloc for env in settings.envs for url in env.servers}
        do = "give servers to the envs, or set launch.env_servers to their number"
        holds = len(given) == launch.env_servers and not (local and launch.env_servers)
        must = f"be {launch.env_servers} in the servers of all envs, as launch.env_servers is, with launcher static"
        SettingsError.unless(holds, "addresses of environment servers", must, len(given), where="launch", do=do)
    elif launch.env_servers and not local:
        do = "leave launch.env_servers at 0, or leave out the servers of an env"
        must = "be 0 where every env names its servers"
        raise SettingsError.of("launch.env_servers", must, launch.env_servers, where="launch", do=do)
