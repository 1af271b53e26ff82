"""Tasks in containers, in the form of Harbor and Terminal-Bench folders: `code/harbor-v0`."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envgym.config.settings import build_settings
from envgym.core.messages import Action, Observation
from envgym.core.tasks import Task
from envgym.core.turns import ZERO, Invalid, Reward
from envgym.env import Env, NoOracle
from envgym.envs.code._harbor_config import network_of, resolve_variables
from envgym.envs.code._harbor_folder import HarborTask, files_of
from envgym.envs.code._harbor_settings import HarborLimits, SweSettings
from envgym.envs.code._harbor_tasks import load_supply
from envgym.envs.code._harbor_verify import (
    ROOT,
    SOLUTION,
    Verification,
    check_kept,
    prepare_logs,
    verify,
    wait_healthy,
)
from envgym.errors import EnvFailure, InfrastructureError, InvalidInput, ToolError, check_known, sentence
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.sandbox import MIB, RunEnding, make_machines
from envgym.sandbox.machines import CommandResult, Machine, MachineShell, MachineSpec
from envgym.tools import Tool, tool

TOOLS: Mapping[str, Sequence[str]] = {"bash": ("bash",), "run": ("run", "write_file")}
"""Value of the setting `tool` -> names of the tools."""
VERIFICATIONS = ("task", "shared", "fresh")
_WHERE = "code/harbor-v0"
_OWN_S = 60.0
"""Seconds for commands of our own."""
_MAX_COMMAND = 100_000
"""Bytes of a command or file that an agent writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborState:
    """An episode so far; commands change what is in the machine."""

    task: HarborTask
    machine: Machine
    shell: MachineShell
    plan: Verification
    seconds: float = 0.0
    """That commands have taken."""
    has_shell: bool = False
    """Whether the shell has run a command."""
    is_lost: bool = False
    """Whether a command of the agent has ended the machine itself."""
    is_over: bool = False
    """Whether the work was handed in, after which there is no machine."""


class Harbor(Env[HarborState]):
    """Any number of commands in a container; a message without a call hands the work in, and the task's tests run."""

    system_prompt = (
        "You work in a Linux container. Do what the task asks, by commands. Hidden tests examine the state that you "
        "leave. When you are done, say so in a message without a tool call."
    )
    blocking = True
    unchecked: Mapping[str, str] = {  # type: ignore[misc]  # of each instance
        "survives_pickle": "a container cannot be pickled",
    }

    def __init__(
        self,
        *,
        folder: str | None = None,
        splits: Mapping[str, str | Sequence[str]] | None = None,
        test_share: float | None = None,
        split_seed: int = 0,
        on_bad_task: str = "fail",
        base: Mapping[str, str] | None = None,
        network: bool = False,
        build_network: bool = False,
        tool: str = "bash",
        verification: str = "task",
        limits: Mapping[str, Any] | None = None,
        host_env: Sequence[str] = (),
        swe: Mapping[str, Any] | None = None,
        machines: str = "docker",
        reward_range: tuple[float, float] = (0.0, 1.0),
        chance_score: float = 0.0,
        max_turns: int | None = 40,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the tasks and where they run.

        Args:
            folder: A task folder, or a folder of task folders; None: the tasks that ship with envgym.
            splits: Split -> names or patterns of tasks, such as `{train: "*", test: [sort-log]}`; what both fit is
                `test`. None: by `test_share`.
            test_share: Share of the tasks that are `test`, by the hash of their files; None: 0.2.
            split_seed: Another seed draws another split.
            on_bad_task: `fail` refuses a folder that breaks a rule, `skip` leaves it out and logs the reason.
            base: Image in `FROM` or `docker_image` -> image of this machine that takes its place.
            network: Whether containers whose tasks ask for a public network get one.
            build_network: Whether `RUN` in a Dockerfile reaches a network.
            tool: `bash` is one shell that keeps its state; `run` starts each command anew, with `write_file`.
            verification: `shared` runs the tests in the agent's container, `fresh` in a new one that gets the working
                directory; `task`: as the task says, which is `shared` unless it says `fresh`.
            limits: Of machines and agents, where the task has none; see the card.
            host_env: Variables of this process that tasks may read in their `env`.
            swe: Instances in the form of SWE-bench in place of a folder; see the card.
            machines: Back-end that runs the containers.
            reward_range: Bounds of what the tests pay.
            chance_score: Highest expected reward of an agent that does nothing.
            max_turns: Turns until the episode is cut; the tests run then, too.
            **options: As in `Env`.

        Raises: InvalidInput: a folder or value that breaks a rule, or no engine that runs containers.
        """
        super().__init__(max_turns=max_turns, **options)
        check_known("tool", tool, TOOLS, where=_WHERE)
        check_known("verification", verification, VERIFICATIONS, where=_WHERE)
        self.limits = build_settings(HarborLimits, limits or {}, where=f"limits of {_WHERE}")
        self.base, self.has_network, self.builds_with_network = dict(base or {}), network, build_network
        self.tool_kind, self.verification, self.host_env = tool, verification, tuple(host_env)
        self.reward_range = (float(reward_range[0]), float(reward_range[1]))
        self.chance_score = chance_score
        self._backend = make_machines(machines)
        self._packed: set[tuple[str, str]] = set()
        self._supply = load_supply(
            None if swe is None else build_settings(SweSettings, swe, where=f"swe of {_WHERE}"),
            folder,
            splits,
            test_share=test_share,
            split_seed=split_seed,
            on_bad_task=on_bad_task,
        )
        self.tasks = self._supply.tasks
        self.unchecked = {**type(self).unchecked, **self._supply.unread}  # shown by envgym check
        reason = self._backend.why_unavailable()
        if reason is not None:
            raise InvalidInput.of("containers", "run here", reason, where=_WHERE, do="start a Docker engine")

    # ---- an episode --------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> str:
        """Build the image of the task, start a machine, and wait until it is healthy."""
        self.close()
        work = self._supply.find(task)
        image = self._image(work)
        machine = self._start(work, image)
        try:
            _prepare(machine, work, work.conceal)
            wait_healthy(work, machine)
            self.state = self._state(work, image, machine)
        except BaseException:
            machine.close()
            raise
        return work.instruction

    def _image(self, work: HarborTask) -> str:
        """Return the image of a task. Raises: EnvFailure: it cannot be built."""
        if work.image is not None:
            return self.base.get(work.image, work.image)
        assert work.context is not None, "a task has an image or a Dockerfile"
        seconds = work.file.environment.build_timeout_sec
        try:
            return self._backend.build(
                work.context, bases=self.base, network=self.builds_with_network, timeout_s=seconds
            )
        except (InvalidInput, InfrastructureError) as error:
            raise EnvFailure(str(error)) from error  # its sentence names the folder and the end of the output

    def _start(self, work: HarborTask, image: str) -> Machine:
        """Start a machine and prepare it. Raises: EnvFailure, ToolInfraFailure: it does not start, or the command."""
        part, limits = work.file.environment, self.limits
        spec = MachineSpec(
            image=image,
            workdir=part.workdir,
            env=resolve_variables(part.env, self.host_env, where=work.where),
            cpus=part.cpus or limits.cpus,
            memory=int((part.memory_mb or limits.memory_mb) * MIB),
            disk=int((part.storage_mb or limits.storage_mb) * MIB),
            processes=limits.processes,
            network=self.has_network and network_of(work.file),
        )
        try:
            machine = self._backend.start(spec)
        except InvalidInput as error:
            do = "pull or build the image, or map it by `base`"
            raise EnvFailure.of("machine", "start", str(error), where=work.where, do=do) from error
        try:
            _prepare(machine, work, work.prepare)
        except BaseException:
            machine.close()
            raise
        return machine

    def _state(self, work: HarborTask, image: str, machine: Machine) -> HarborState:
        done = machine.run("id -u; pwd", timeout_s=_OWN_S)
        lines = done.text.splitlines()
        if not done.is_success or len(lines) != 2:
            do = "use an image with a shell, and with its working directory"
            raise EnvFailure.of("machine", "run a command", done.text, where=work.where, do=do)
        uid, workdir = lines
        mode = work.own.verification if self.verification == "task" else self.verification
        if mode == "fresh" and workdir == "/" and not work.own.keep:
            do = "set WORKDIR or environment.workdir, or keep in [metadata.envgym]"
            raise EnvFailure.of("working directory", "be below /", workdir, where=work.where, do=do)
        agent, verifier = work.file.agent.user, work.file.verifier
        plan = Verification(
            task=work,
            tests=files_of(work.tests, where=work.where),
            workdir=workdir,
            user=uid if verifier.user is None else str(verifier.user),
            is_fresh=mode == "fresh",
            max_kept=int(self.limits.kept_mb * MIB),
            start=lambda: self._start(work, image),
            env=resolve_variables(verifier.env, self.host_env, where=work.where),
        )
        prepare_logs(machine, plan, agent=uid if agent is None else str(agent))
        if plan.is_fresh and (work.key, image) not in self._packed:
            check_kept(plan, machine)
            self._packed.add((work.key, image))
        return HarborState(task=work, machine=machine, shell=_shell(work, machine), plan=plan)

    # ---- tools -------------------------------------------------------------------------------------------------

    def toolset(self) -> Mapping[str, Tool]:
        """Return the tools of the setting `tool`."""
        return {name: item for name, item in super().toolset().items() if name in TOOLS[self.tool_kind]}

    @tool
    def bash(self, command: str) -> str:
        """Run a command in a bash that keeps its directory, variables and background jobs until the end.

        Args:
            command: As in cd src && make; its standard input is empty.
        """
        limit = self._seconds_left()
        result = self.state.shell.run(_checked(command), limit, output=self.limits.output)
        self.state = replace(self.state, has_shell=not result.is_shell_lost)
        return self._shown(result)

    @tool
    def run(self, command: str) -> str:
        """Run a command with sh in the working directory; files are kept, variables are not.

        Args:
            command: As in ls -l, or python3 -c 'print(1)'.
        """
        limit, user = self._seconds_left(), self.state.task.file.agent.user
        result = self.state.machine.run(
            _checked(command), timeout_s=limit, output=self.limits.output, user=None if user is None else str(user)
        )
        return self._shown(result)

    @tool
    def write_file(self, path: str, text: str) -> str:
        """Write a whole file: a new one, or in place of what is there.

        Args:
            path: Absolute, or relative to the working directory.
            text: All of it.
        """
        user = self.state.task.file.agent.user
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
        result = self.state.machine.run(
            ["sh", "-c", script, "sh", _checked(path)],
            timeout_s=self._seconds_left(),
            user=None if user is None else str(user),
            stdin=_checked(text).encode(),
        )
        self._shown(result)
        if not result.is_success:
            raise ToolError(f"{path} cannot be written: {result.text.strip()}")
        return f"Wrote {path}."

    def _seconds_left(self) -> float:
        """Return the seconds that the next command may take. Raises: ToolError: there are none."""
        if self.state.is_lost:
            raise ToolError(
                "Your last command ended the container, by its memory or by never ending. Hand the work in."
            )
        total = self.state.task.file.agent.timeout_sec or self.limits.agent_s
        left = total - self.state.seconds
        if left <= 0:
            raise ToolError(f"Your commands took {total:g} seconds: there are no more. Hand the work in.")
        return min(self.limits.command_s, left)

    def _shown(self, result: CommandResult) -> str:
        seconds, is_lost = self.state.seconds + result.seconds, self.state.is_lost or result.is_machine_lost
        self.state = replace(self.state, seconds=seconds, is_lost=is_lost)
        return show_result(result)

    # ---- the end -----------------------------------------------------------------------------------------------

    def after_tools(self, observation: Observation) -> Reply:
        """Go on; at the last turn, test the state as it is."""
        if self.max_turns is None or self._turn + 1 < self.max_turns:
            return Reply(observation=observation)
        return Reply(observation=observation, reward=self._verified())

    def respond(self, action: Action) -> Reply:
        """Test what was handed in."""
        reward = self._verified()
        text = reward.reason if isinstance(reward, Invalid) else f"The tests give {reward.value:g}."
        return Reply(observation=text, reward=reward, terminated=True)

    def _verified(self) -> Reward:
        """Return the reward: 0 if the agent ended the machine. Raises: InfrastructureError: a machine failed."""
        try:
            return ZERO if self.state.is_lost else verify(self.state.plan, self.state.machine)
        finally:
            self.close()
            self.state = replace(self.state, is_over=True)

    def oracle(self) -> str:
        """Run the solution's script, then hand in. Raises: NoOracle: the task has no solution."""
        work = self.state.task
        if work.solution is None:
            do = "add solution/solve.sh"
            raise NoOracle(sentence("task", "have a solution", "none", where=work.where, do=do))
        if self._turn > 0:
            return "Done."
        files = files_of(work.solution, where=work.where)
        variables = resolve_variables(work.file.solution.env, self.host_env, where=work.where)
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        name = "bash" if self.tool_kind == "bash" else "run"
        script = files["solve.sh"].decode(errors="replace")
        if len(files) == 1 and len(script) < _MAX_COMMAND - 1000:
            mark = "END_OF_SOLUTION"
            body = f"cat > /tmp/solve.sh <<'{mark}'\n{script.rstrip()}\n{mark}\nbash /tmp/solve.sh"
        else:
            self.state.machine.put(files, SOLUTION, mode=0o755, is_fresh=True)
            body = f"bash {SOLUTION}/solve.sh"
        return tool_call_action(name, command=f"{exports}{body}")

    # ---- copies ------------------------------------------------------------------------------------------------

    def fork_state(self) -> HarborState:
        """Copy the machine and the state of its shell. Raises: ForkUnsupported: a program runs in the background."""
        state = self.state
        if state.is_over:
            return state
        twin = state.machine.fork()
        try:
            shell = state.shell.fork(twin) if state.has_shell else _shell(state.task, twin)
        except BaseException:
            twin.close()
            raise
        return replace(state, machine=twin, shell=shell)

    def close(self) -> None:
        """Remove the machine of the episode."""
        state: HarborState | None = getattr(self, "state", None)
        if state is not None:
            state.machine.close()


def _prepare(machine: Machine, work: HarborTask, command: str) -> None:
    """Run a command of a task as root, if it has one. Raises: EnvFailure: it fails."""
    if not command:
        return
    done = machine.run(command, timeout_s=work.file.environment.build_timeout_sec, user=ROOT)
    if not done.is_success:
        do = "correct the image or the instance"
        raise EnvFailure.of("machine", "be prepared", done.text, where=work.where, do=do)


def _shell(work: HarborTask, machine: Machine) -> MachineShell:
    user = work.file.agent.user
    return MachineShell(machine, user=None if user is None else str(user), workdir=work.file.environment.workdir)


def _checked(text: str) -> str:
    """Return a text that a command line can hold. Raises: ToolError: it is too long, or has a NUL."""
    clean = text.encode(errors="replace").decode()
    if "\0" in clean or len(clean.encode()) > _MAX_COMMAND:
        raise ToolError(f"It must have at most {_MAX_COMMAND} bytes, and no NUL.")
    return clean


def show_result(result: CommandResult) -> str:
    """Return the output of a command, and how it ended unless it just exited with 0."""
    notes = []
    if result.ending is not RunEnding.EXITED:
        notes.append(f"[ended by {result.ending.value}]")
    elif result.exit_code:
        notes.append(f"[exit code {result.exit_code}]")
    if result.is_shell_lost:
        notes.append("[the shell ended; the next command has a new one]")
    text = result.text.rstrip("\n")
    return "\n".join(part for part in (text, *notes) if part) or "(no output)"
