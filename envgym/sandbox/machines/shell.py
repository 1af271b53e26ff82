"""A persistent shell in a machine: one bash process that keeps its state between commands."""

import re
from collections.abc import Mapping
from itertools import count
from types import MappingProxyType

from envgym.core.json_types import is_well_formed
from envgym.errors import ForkUnsupported
from envgym.sandbox.machines.records import DEFAULT_OUTPUT, CommandResult, Machine

_numbers = count(1)
_STATE = (
    "{ declare -p; declare -f; alias -p; shopt -p; set +o; umask -p; trap -p; printf 'cd %q\\n' \"$PWD\"; } 2>/dev/null"
)
"""Writes the commands that make another bash like this one."""
_OWN = (
    "BASH\\w*|DIRSTACK|EPOCH\\w+|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|PIPESTATUS|PPID|S?RANDOM|SECONDS|SHELLOPTS|UID|_"
)
_FIXED = re.compile(rf"^declare -\S+ (?:{_OWN})(?:=.*)?\n", re.MULTILINE)
"""The variables that every bash sets itself; to set some of them ends the list of commands."""
_MAX_STATE = 100_000
_STATE_S = 30.0


class MachineShell:
    """A bash in a machine that keeps its directory, variables, functions and background jobs between commands.

    Commands read nothing: their standard input is empty. A command that ends the shell, or is stopped by a limit, has
    `is_shell_lost` in its result, and the next command has a new shell in the same user's `workdir`.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start nothing yet; user, workdir and env are as in `Machine.run`."""
        self._machine, self._user, self._workdir, self._env = machine, user, workdir, env
        self._name = f"shell-{next(_numbers)}"
        self._status = 0

    def run(self, command: str, timeout_s: float, *, output: int = DEFAULT_OUTPUT) -> CommandResult:
        """Run a command in the shell. Raises: as `Machine.run`."""
        result = self._machine.run(
            command,
            timeout_s=timeout_s,
            output=output,
            workdir=self._workdir,
            env=self._env,
            user=self._user,
            shell=self._name,
        )
        self._status = 0 if result.is_shell_lost else result.exit_code
        return result

    def fork(self, machine: Machine) -> "MachineShell":
        """Return a shell in a copy of the machine that has the directory and variables of this one.

        It also has the functions, aliases, options, traps and the status of the last command.

        Args:
            machine: a fork of this shell's machine.

        Raises: ForkUnsupported: the state cannot be read, is too long, or cannot be set. As `Machine.run`.
        """
        back = f"(exit {self._status})"
        state = self.run(f"{_STATE}; {back}", _STATE_S, output=_MAX_STATE)
        copy = MachineShell(machine, user=self._user, workdir=self._workdir, env=self._env)
        is_read = state.exit_code == self._status and not state.is_shell_lost and not state.dropped
        if is_read and is_well_formed(text := state.output.decode("utf-8", "surrogateescape")):
            result = copy.run(f"{{ {_FIXED.sub('', text)}\n}} >/dev/null 2>&1; {back}", _STATE_S)
            if result.exit_code == self._status and not result.is_shell_lost:
                return copy
        must, do = f"have a state of text below {_MAX_STATE} bytes", "unset what is not needed, or start a new shell"
        raise ForkUnsupported.of("shell", must, f"{len(state.output) + state.dropped} bytes", where="fork", do=do)
