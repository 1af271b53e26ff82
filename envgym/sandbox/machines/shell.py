"""A persistent shell in a machine: one bash process that keeps its state between commands."""

from collections.abc import Mapping
from itertools import count
from types import MappingProxyType

from envgym.sandbox.machines.records import DEFAULT_OUTPUT, CommandResult, Machine

_numbers = count(1)


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

    def run(self, command: str, timeout_s: float, *, output: int = DEFAULT_OUTPUT) -> CommandResult:
        """Run a command in the shell. Raises: as `Machine.run`."""
        return self._machine.run(
            command,
            timeout_s=timeout_s,
            output=output,
            workdir=self._workdir,
            env=self._env,
            user=self._user,
            shell=self._name,
        )
