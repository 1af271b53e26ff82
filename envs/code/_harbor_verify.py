"""Verification of a task: the agent's processes are ended, the tests are put in, run, and their reward file is read."""

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from envgym.core.turns import ZERO, Ending, Invalid, Reward
from envgym.envs.code._harbor_folder import Files, HarborTask
from envgym.envs.code._harbor_reward import JSON, MAX_BYTES, TEXT, read_reward
from envgym.errors import EnvFailure, InvalidInput, ToolError
from envgym.sandbox import RunEnding
from envgym.sandbox.machines import CommandResult, Machine

ROOT = "0"
TESTS, SOLUTION, LOGS = "/tests", "/solution", "/logs"
REWARDS = f"{LOGS}/verifier"
_PRELOAD = "ld.so.preload"
_AGENT_FAULTS = (ToolError, InvalidInput)
"""Errors of a machine whose files are not what `prepare_logs` found: full, linked elsewhere, without users."""
_OWN_S = 60.0
"""Seconds for packing and unpacking files, and for commands of our own."""
_TAIL = 300
"""Characters of the tests' output in the reason of an invalid reward."""


class _TooLarge(ToolError):
    """A kept path is larger than a new container gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What is needed to test the result of an agent."""

    task: HarborTask
    tests: Files
    """As they were when the episode began."""
    workdir: str
    """Where the tests run."""
    user: str
    """Who runs the tests."""
    is_fresh: bool
    """Whether the tests run in a new container."""
    max_kept: int
    """Bytes of each path that a new container gets, as a compressed archive."""
    start: Callable[[], Machine]
    """Starts a new container of the task's image, prepared as the agent's was."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables of the tests, in addition to those of the machine."""


def prepare_logs(machine: Machine, plan: Verification, *, agent: str) -> None:
    """Make the folder of the agent's logs, in one that is root's, and run a command as the tests will be run.

    Raises: EnvFailure: the image or the task does not allow it.
    """
    where, do = plan.task.where, "correct the image, or [agent] and [verifier] in task.toml"
    own_logs = f"chown 0:0 {LOGS} && chmod 755 {LOGS}"
    try:
        _put_agent_logs(machine, plan.task, agent)
        done = machine.run(own_logs, timeout_s=_OWN_S, workdir="/", user=ROOT)
        can_run = _look(plan, machine)
    except _AGENT_FAULTS as error:
        raise EnvFailure.of("machine", "allow the logs and the tests", str(error), where=where, do=do) from error
    if not done.is_success:
        raise EnvFailure.of("machine", f"let root own {LOGS}", _tail(done), where=where, do=do)
    if not can_run.is_success:
        must = "have the program in the first line of test.sh, and let the tests enter the working directory"
        raise EnvFailure.of("machine", must, can_run.text or "neither or one", where=where, do=do)


def _put_agent_logs(machine: Machine, task: HarborTask, agent: str) -> None:
    """Make the folder of the agent's logs. Raises: EnvFailure: the image has no such user. ToolError: a link."""
    try:
        machine.put({}, f"{LOGS}/agent", owner=agent)
    except InvalidInput as error:
        where, do = f"{task.where}/task.toml", "add the user in environment/Dockerfile, or correct the key"
        raise EnvFailure.of("agent.user", "be a user of the image", agent, where=where, do=do) from error


def _look(plan: Verification, machine: Machine) -> CommandResult:
    """Look for the program that runs the tests, in their directory. Raises: InvalidInput: as `Machine.run`."""
    first = plan.tests["test.sh"].partition(b"\n")[0].decode(errors="replace")
    program = first[2:].split()[0] if first.startswith("#!") and first[2:].strip() else "/bin/sh"
    command = f"test -x {shlex.quote(program)}"
    return machine.run(command, timeout_s=_OWN_S, workdir=plan.workdir, env=plan.env, user=plan.user)


def verify(plan: Verification, machine: Machine) -> Reward:
    """Return the reward of what the agent left in a machine, which is of no further use.

    A machine that is full, or whose files do not let the tests be put in, is the agent's doing, and scores 0. Tests
    that do not end, or write no valid reward, make the reward invalid.

    Raises: ToolInfraFailure: the machine does not work. EnvFailure: the new container cannot be prepared.
    """
    try:
        machine.end_processes()
        if not plan.is_fresh:
            # Whatever the agent's user may write, a library that is loaded into every program is not part of a task.
            machine.put({_PRELOAD: b""}, "/etc")
            return _run_tests(plan, machine)
        archives = _pack(plan, machine)
    except _AGENT_FAULTS:
        return ZERO
    machine.close()
    fresh = plan.start()
    try:
        for path, archive in archives.items():
            _unpack(fresh, path, archive, plan.task)
        return _run_tests(plan, fresh)
    except _AGENT_FAULTS:
        return ZERO
    finally:
        fresh.close()


def _run_tests(plan: Verification, machine: Machine) -> Reward:
    """Put the tests in, run them, and read what they wrote. Raises: ToolError: the files' state does not allow it."""
    task, seconds = plan.task, plan.task.file.verifier.timeout_sec
    seen = _look(plan, machine)
    if seen.is_machine_lost:
        return ZERO
    if seen.ending is RunEnding.EXITED and not seen.is_success:
        return ZERO  # what was there at the start is gone
    machine.put(plan.tests, TESTS, mode=0o700, owner=plan.user, is_fresh=True)
    machine.put({}, REWARDS, owner=plan.user, is_fresh=True)
    result = machine.run(f"{TESTS}/test.sh", timeout_s=seconds, workdir=plan.workdir, env=plan.env, user=plan.user)
    if result.ending is RunEnding.WALL_TIME:
        reason = f"The tests of {task.where} must end within {seconds:g} s; they were stopped."
        return Invalid(cause=Ending.ERROR_ENV, reason=reason)
    if result.is_machine_lost:
        return ZERO
    machine.end_processes()
    reward = read_reward(_written(machine), plan.tests, where=task.where)
    if isinstance(reward, Invalid) and result.ending.is_limit:
        return ZERO  # the machine is as large as the task says: the agent's files or programs have filled it
    if isinstance(reward, Invalid):
        return Invalid(cause=reward.cause, reason=f"{reward.reason} {_tail(result)}".strip())
    return reward


def _written(machine: Machine) -> dict[str, bytes]:
    """Return the reward files that the tests wrote; one that is too large is empty."""
    files: dict[str, bytes] = {}
    for name in (JSON, TEXT):
        try:
            files |= machine.get(f"{REWARDS}/{name}", max_bytes=MAX_BYTES)
        except ToolError:
            files[name] = b""
    return files


def _tail(result: CommandResult) -> str:
    text = " ".join(result.text.split())
    return f"The tests ended with exit code {result.exit_code}: {text[-_TAIL:]}" if text else ""


def check_kept(plan: Verification, machine: Machine) -> None:
    """Pack what a new container will get, before the agent begins. Raises: EnvFailure: it is too large."""
    try:
        _pack(plan, machine)
    except _TooLarge as error:
        do = "name fewer or smaller paths by keep in [metadata.envgym]"
        raise EnvFailure.of("kept paths", "fit limits.kept_mb", str(error), where=plan.task.where, do=do) from error
    except ToolError:
        return  # the agent may have to make them


def _pack(plan: Verification, machine: Machine) -> dict[str, bytes]:
    """Return the kept paths of a machine as archives; hostile, as the programs of the machine may be.

    Raises: ToolError: one is missing, or too large. EnvFailure: it takes too long.
    """
    options = "".join(f" --exclude=./{name}" for name in plan.task.excluded)
    command = f'exec tar --create --gzip --numeric-owner --directory "$KEPT"{options} . 2>/dev/null'
    archives: dict[str, bytes] = {}
    for path in plan.task.own.keep or (plan.workdir,):
        env = {"KEPT": path}
        result = machine.run(command, timeout_s=_OWN_S, output=plan.max_kept, workdir="/", env=env, user=ROOT)
        _check_time(result, path, plan.task)
        if result.dropped:
            raise _TooLarge(f"{path} cannot be packed into {plan.max_kept} bytes.")
        if not result.is_success:
            raise ToolError(f"{path} cannot be packed.")
        archives[path] = result.output
    return archives


def _check_time(result: CommandResult, path: str, task: HarborTask) -> None:
    if result.ending is RunEnding.WALL_TIME:
        do = "name fewer files by keep in [metadata.envgym]"
        must = f"be packed and unpacked within {_OWN_S:g} s each"
        raise EnvFailure.of(f"kept path {path}", must, "one that takes longer", where=task.where, do=do)


def _unpack(machine: Machine, path: str, archive: bytes, task: HarborTask) -> None:
    """Put an archive in place of a path's content.

    Raises: ToolError: it is none. EnvFailure: the path cannot be cleared, or it takes too long.
    """
    excluded = task.excluded
    keep = "".join(f" ! -name {name}" for name in excluded)
    clear = f'mkdir -p "$KEPT" && find "$KEPT" -mindepth 1 -maxdepth 1{keep} -exec rm -rf {{}} +'
    done = machine.run(clear, timeout_s=_OWN_S, workdir="/", env={"KEPT": path}, user=ROOT)
    if not done.is_success:
        raise EnvFailure(f"{path} of a new container cannot be cleared: {_tail(done)}")
    unpack = "tar --extract --gzip --same-permissions --numeric-owner --file - --directory"
    command = f'exec {unpack} "$KEPT"'
    if excluded:  # a link in the archive could lead into what is kept, so that it is unpacked elsewhere
        names = " ".join(f'"$new"/{name}' for name in excluded)
        move = """find "$new" -mindepth 1 -maxdepth 1 -exec sh -c 'mv -- "$@" "$KEPT"' sh {} +"""
        command = f'new=$(mktemp -d "$KEPT.XXXXXX") && {unpack} "$new" && rm -rf {names} && {move} && rm -rf "$new"'
    done = machine.run(command, timeout_s=_OWN_S, workdir="/", env={"KEPT": path}, user=ROOT, stdin=archive)
    _check_time(done, path, task)
    if not done.is_success:
        raise ToolError(f"{path} cannot be unpacked.")


def wait_healthy(task: HarborTask, machine: Machine) -> None:
    """Wait until the task's health check succeeds. Raises: EnvFailure: it fails too often."""
    check = task.file.environment.healthcheck
    if check is None:
        return
    began, failures = time.monotonic(), 0
    while not machine.run(check.command, timeout_s=check.timeout_sec).is_success:
        is_starting = time.monotonic() - began < check.start_period_sec
        failures += 0 if is_starting else 1
        if failures >= check.retries:
            do = "correct the command or the image"
            raise EnvFailure.of("healthcheck", "succeed", f"{failures} failures", where=task.where, do=do)
        time.sleep(check.start_interval_sec if is_starting else check.interval_sec)
