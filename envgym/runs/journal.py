"""Episodes written down as they end, so that an evaluation that was killed runs none of them again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.tree import Tree
from envgym.errors import RunError
from envgym.runs.files import whole_lines, write_atomic


class Journal:
    """A file that grows by one line an episode; a line that a crash cut short was never written."""

    def __init__(self, path: Path) -> None:
        """Read what is there. Raises: RunError: a whole line that is no episode."""
        self.path = path
        self.seconds: dict[str, float] = {}
        """Evaluation -> time spent up to its last episode."""
        self.trees: dict[tuple[str, str], Tree] = {}
        """(evaluation, tree id) -> episode."""
        lines = whole_lines(path)
        for number, line in enumerate(lines, start=1):
            self._take(line, number)
        if path.exists():
            write_atomic(path, b"".join(line + b"\n" for line in lines))  # without a torn end

    def of(self, evaluation: str) -> list[Tree]:
        return [tree for (owner, _), tree in self.trees.items() if owner == evaluation]

    def add(self, evaluation: str, tree: Tree, *, seconds: float) -> None:
        """Write an episode down.

        Args:
            evaluation: label of the evaluation that it belongs to.
            tree: finished.
            seconds: time spent on this evaluation so far, by earlier processes too.
        """
        entry: Mapping[str, Any] = {"evaluation": evaluation, "seconds": seconds, "tree": tree_to_json(tree)}
        with self.path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
        self.trees[evaluation, tree.id] = tree
        self.seconds[evaluation] = seconds

    def _take(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            tree, evaluation = tree_from_json(entry["tree"]), str(entry["evaluation"])
            self.trees[evaluation, tree.id] = tree
            self.seconds[evaluation] = float(entry["seconds"])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            do = "delete that line, and its episode is run again"
            got = f"{type(error).__name__}: {error}"
            raise RunError.of("line", "be an episode", got, where=f"{self.path}, line {number}", do=do) from None
