"""One run as the app shows it: summary, metrics, episodes and trees, followed while the run goes on."""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from envgym.core.trajectory import trajectories
from envgym.errors import EnvgymError, RunError, UnknownName, near_names
from envgym.report.data import TreeData, to_json
from envgym.report.from_run import episode_shown, evaluations_of_run, metric_row, trees_shown
from envgym.runs.directory import RunDirectory, reading
from envgym.runs.episodes import trees_of
from envgym.viewer.clip import Json
from envgym.viewer.episode_files import MAX_NODES, read_tree_rows
from envgym.viewer.index import EpisodeColumns, EpisodeIndex

_REFRESH_S: Final = 1.0
"""Files are looked for at most so often."""
_MAX_CACHED: Final = 4
"""Episodes, and trees, that are kept after they were shown."""


class ViewedRun:
    """A run, opened for reading."""

    def __init__(self, path: str | Path) -> None:
        """Open it. Raises: RunError: there is none, or one of a newer schema."""
        self.run = RunDirectory.open(path)
        self.index = EpisodeIndex(self.run)
        self._lock = threading.Lock()
        self._refreshed = 0.0
        self._metrics: tuple[tuple[int, int], list[Json]] = ((0, 0), [])
        self.episode = lru_cache(maxsize=_MAX_CACHED)(self._episode)
        self.tree = lru_cache(maxsize=_MAX_CACHED)(self._tree)
        self._is_closed = threading.Event()

    def refresh(self) -> None:
        """Look for new files, unless that was done just now."""
        with self._lock:
            if time.monotonic() - self._refreshed >= _REFRESH_S:
                self.index.refresh()
                self._refreshed = time.monotonic()

    def read_ahead(self) -> None:
        """Read the details of all episodes, and of those that come, until `close`; for a thread of its own."""
        while not self._is_closed.is_set():
            if not self.index.read_details():
                self._is_closed.wait(_REFRESH_S)

    def close(self) -> None:
        """End `read_ahead`."""
        self._is_closed.set()

    @property
    def columns(self) -> EpisodeColumns:
        """The episodes, with those of new files."""
        self.refresh()
        return self.index.columns

    def summary(self) -> Json:
        """Return the run's entry of a list of runs; a file that cannot be read is a sentence in `problems`."""
        columns = self.columns
        problems = self.index.problems
        fields: Json = {}
        for read in (self._settings, self._progress):
            try:
                fields |= read()
            except (EnvgymError, OSError) as error:
                problems.append(str(error))
        counts: Counter[str] = Counter()
        steps: dict[str, set[int]] = {}
        for file in columns.files:
            counts[file.source] += len(file)
            steps.setdefault(file.source, set()).update(pc.unique(file.table["step"]).to_pylist())
        return {
            "name": self.run.name,
            "path": str(self.run.path),
            "env_ids": [],
            "model": "",
            "agent": "",
            "recipe": "",
            "seed": None,
            "steps": None,
            "last_step": None,
            "num_metrics": 0,
            "num_evaluations": 0,
            **fields,
            "num_episodes": len(columns),
            "num_with_details": self.index.num_with_details,
            "sources": dict(counts),
            "endings": sorted({*pc.unique(columns.table["ending"]).to_pylist()} - {""}),
            "steps_saved": {source: sorted(of_source) for source, of_source in steps.items()},
            "problems": problems,
        }

    def _settings(self) -> Json:
        with reading(str(self.run.path / "config.json")):
            config = self.run.config
            run, model, agent = (config.get(name) or {} for name in ("run", "model", "agent"))
            return {
                "env_ids": [str(env["id"]) for env in config.get("envs", [])],
                "model": str(model.get("name", "")),
                "agent": str(agent.get("name", "")),
                "recipe": str(config.get("recipe", "")),
                "seed": run.get("seed"),
                "steps": run.get("steps"),
            }

    def _progress(self) -> Json:
        metrics = self.metrics()
        return {
            "last_step": metrics[-1]["step"] if metrics else None,
            "num_metrics": len(metrics),
            "num_evaluations": len(self.run.evals()),
        }

    def metrics(self) -> list[Json]:
        """Return the metrics of every step; the file is read when it has grown. Raises: RunError: it is broken."""
        path = self.run.path / "metrics.jsonl"
        if not path.exists():
            return []
        stat = path.stat()
        key = (stat.st_size, stat.st_mtime_ns)
        if key != self._metrics[0]:
            rows = map(metric_row, self.run.metrics())
            self._metrics = (key, [{"step": row.step, "values": dict(row.values)} for row in rows])
        return self._metrics[1]

    def evaluations(self) -> Json:
        """Return every evaluation with its intervals. Raises: RunError: one is broken."""
        with reading(str(self.run.path)):
            return {"evaluations": to_json(evaluations_of_run(self.run))}

    # ---- one episode, one tree ------------------------------------------------------------------------------------

    def find(self, source: str, step: int, tree_id: str, leaf: int | None = None) -> int:
        """Return the position of an episode in `columns`. Raises: UnknownName: the run has none of that name."""
        columns = self.columns
        parts = {"source": source, "step": step, "tree_id": tree_id} | ({} if leaf is None else {"leaf": leaf})
        is_match = reduce(pc.and_, (pc.equal(columns.table[part], value) for part, value in parts.items()))
        for position in pc.indices_nonzero(is_match)[:1].to_pylist():
            return int(position)
        name = f"{source}/{step}/{tree_id}" + ("" if leaf is None else f"/{leaf}")
        tree_ids = {tree_id: None, **dict.fromkeys(map(str, columns.table["tree_id"][:1000].to_pylist()))}
        near = [other for other in near_names(tree_id, tree_ids) if other != tree_id]
        do = f"did you mean {' or '.join(near)}?" if near else "choose one from the table of episodes"
        raise UnknownName.of("episode", "be one of the run", name, where=str(self.run.path), do=do)

    def _episode(self, source: str, step: int, tree_id: str, leaf: int) -> Json:
        """Return the JSON of an episode as reports show it. Raises: UnknownName: there is none. RunError: broken."""
        rows = self._rows(source, step, tree_id, leaf)
        with reading(f"{self.run.path}, tree {tree_id}"):
            (tree,) = trees_of(rows)
            path = next((path for path in trajectories(tree) if path.leaf == leaf), None)
            row = next((row for row in rows if row["leaf"] == leaf), None)
            if path is None or row is None:
                raise ValueError(f"no episode ends at node {leaf}")
            data = to_json(episode_shown(path, row, source=source))
        assert isinstance(data, dict), "a record's JSON"
        return {**data, "dropped": row["dropped"] or ""}

    def _tree(self, source: str, step: int, tree_id: str) -> Json:
        """Return the JSON of a tree as reports show it. Raises: UnknownName: there is none. RunError: broken."""
        rows = self._rows(source, step, tree_id, None)
        with reading(f"{self.run.path}, tree {tree_id}"):
            trees: list[TreeData] = trees_shown(rows, source=source)
            data = to_json(trees[0])
        assert isinstance(data, dict), "a record's JSON"
        return data

    def _rows(self, source: str, step: int, tree_id: str, leaf: int | None) -> Sequence[Mapping[str, Any]]:
        at = self.find(source, step, tree_id, leaf)
        rows = read_tree_rows(*self.index.columns.locate(at))
        num_nodes = max((str(row["tree"] or "").count('"ends_turn"') for row in rows), default=0)
        do = "read it from the file of its episodes"
        must, where = f"have at most {MAX_NODES:,} nodes to be shown", f"{self.run.path}, tree {tree_id}"
        RunError.unless(num_nodes <= MAX_NODES, "tree", must, f"{num_nodes:,}", where=where, do=do)
        return rows
