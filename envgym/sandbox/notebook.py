"""A Python session that can be copied and pickled: what cannot be carried over is run again."""

from collections.abc import Mapping
from typing import Self

from envgym.errors import ForkUnsupported
from envgym.sandbox.records import DEFAULT_LIMITS, Limits
from envgym.sandbox.session import PythonSession, SessionResult


class Notebook:
    """Cells run one after another in one session; the session starts with the first."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS, cells: tuple[str, ...] = ()) -> None:
        self.limits = limits
        self.cells = cells
        self._session: PythonSession | None = None

    def run(self, code: str) -> SessionResult:
        """Run a cell. Raises: ToolInfraFailure: the sandbox does not work."""
        if self._session is None:
            self._session = PythonSession(self.limits)
            for cell in self.cells:
                self._session.run(cell)
        result = self._session.run(code)
        self.cells = (*self.cells, code)
        return result

    def fork(self) -> Self:
        """Return a notebook that goes on from here; where its session cannot be forked, the cells are run again."""
        twin = type(self)(self.limits, self.cells)
        if self._session is not None:
            try:
                twin._session = self._session.fork()
            except ForkUnsupported:
                twin._session = None
        return twin

    def close(self) -> None:
        """End the session; a later cell starts another and runs all again."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def __getstate__(self) -> Mapping[str, object]:
        """Leave the session out: another process runs the cells again."""
        return {"limits": self.limits, "cells": self.cells, "_session": None}
