"""One run as the app shows it: summary, metrics, episodes and trees, followed while the run goes on."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from envgym.core.trajectory import trajectories
from envgym.episodes import trees_of
from envgym.errors import EnvgymError, UnknownName, near_names
from envgym.report.build import build_metric_row
from envgym.report.data import TreeData, to_json
from envgym.report.from_run import episode_shown, evaluations_of_run, trees_shown
from envgym.runs import RunDirectory, reading
from envgym.viewer.clip import Json
from envgym.viewer.episode_files import read_tree_rows
from envgym.viewer.index import EpisodeColumns, EpisodeIndex

_REFRESH_S: Final = 1.0
"""Files are looked for at most so often."""
_MAX_CACHED: Final = 8
"""Episodes and trees that are kept after they were shown."""


class ViewedRun:
    """A run, opened for reading."""

    def __init__(self, path: str | Path) -> None:
        """Open it. Raises: RunError: there is none, or one of a newer schema."""
        self.run = RunDirectory.open(path)
        self.index = EpisodeIndex(self.run)
        self._lock = threading.Lock()
        self._refreshed = 0.0
        self._metrics: tuple[tuple[int, int], list[Json]] = ((0, 0), [])
        self._shown: OrderedDict[tuple[object, ...], Json] = OrderedDict()
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
        """Return what a list of runs shows; what cannot be read is a sentence in `problems`."""
        columns = self.columns
        problems = self.index.problems
        told: Json = {}
        for read in (self._settings, self._progress):
            try:
                told |= read()
            except (EnvgymError, OSError) as error:
                problems.append(str(error))
        codes = columns.coded["source"].codes
        counts = np.bincount(codes[codes >= 0], minlength=len(columns.coded["source"].values)).tolist()
        steps_of = columns.numbers["step"]
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
            **told,
            "num_episodes": len(columns),
            "num_with_details": self.index.num_with_details,
            "sources": dict(zip(columns.coded["source"].values, counts, strict=True)),
            "endings": sorted(columns.coded["ending"].values),
            "steps_saved": {
                source: np.unique(steps_of[codes == code]).astype(int).tolist()
                for code, source in enumerate(columns.coded["source"].values)
            },
            "problems": problems,
        }

    def _settings(self) -> Json:
        """Return what a summary says of the settings. Raises: RunError: they are not what envgym writes."""
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
        """Return what a summary says of metrics and evaluations. Raises: RunError: they cannot be read."""
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
            rows = [
                build_metric_row(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
                for row in self.run.metrics()
            ]
            self._metrics = (key, [{"step": row.step, "values": dict(row.values)} for row in rows])
        return self._metrics[1]

    def evaluations(self) -> Json:
        """Return every evaluation with its intervals. Raises: RunError: one is broken."""
        with reading(str(self.run.path)):
            return {"evaluations": to_json(evaluations_of_run(self.run))}

    # ---- one episode, one tree ------------------------------------------------------------------------------------

    def find(self, source: str, step: int, tree_id: str, leaf: int | None = None) -> int:
        """Return the position of an episode in `columns`. Raises: UnknownName: the run has none of that name."""
        import pyarrow as pa  # heavy: loaded where it is needed
        import pyarrow.compute as pc

        columns = self.columns
        same = pc.equal(columns.tree_ids, pa.scalar(tree_id, pa.string())).combine_chunks()
        mask = np.asarray(same.to_numpy(zero_copy_only=False), dtype=bool) & (columns.numbers["step"] == step)
        if leaf is not None:
            mask &= columns.numbers["leaf"] == leaf
        for at in np.flatnonzero(mask).tolist():
            if columns.files[columns.file[at]].source == source:
                return int(at)
        name = f"{source}/{step}/{tree_id}" + ("" if leaf is None else f"/{leaf}")
        known = {tree_id: None, **dict.fromkeys(map(str, columns.tree_ids[:1000].to_pylist()))}
        near = [other for other in near_names(tree_id, known) if other != tree_id]
        do = f"did you mean {' or '.join(near)}?" if near else "choose one from the table of episodes"
        raise UnknownName.of("episode", "be one of the run", name, where=str(self.run.path), do=do)

    def episode(self, source: str, step: int, tree_id: str, leaf: int) -> Json:
        """Return the JSON of an episode as reports show it. Raises: UnknownName: there is none. RunError: broken."""

        def read() -> Json:
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

        return self._cached(("episode", source, step, tree_id, leaf), read)

    def tree(self, source: str, step: int, tree_id: str) -> Json:
        """Return the JSON of a tree as reports show it. Raises: UnknownName: there is none. RunError: broken."""

        def read() -> Json:
            rows = self._rows(source, step, tree_id, None)
            with reading(f"{self.run.path}, tree {tree_id}"):
                trees: list[TreeData] = trees_shown(rows, source=source)
                data = to_json(trees[0])
            assert isinstance(data, dict), "a record's JSON"
            return data

        return self._cached(("tree", source, step, tree_id), read)

    def _rows(self, source: str, step: int, tree_id: str, leaf: int | None) -> Sequence[Mapping[str, Any]]:
        at = self.find(source, step, tree_id, leaf)
        columns = self.index.columns
        return read_tree_rows(columns.files[columns.file[at]], int(columns.row[at]))

    def _cached(self, key: tuple[object, ...], read: Callable[[], Json]) -> Json:
        with self._lock:
            if key in self._shown:
                self._shown.move_to_end(key)
                return self._shown[key]
        value = read()
        with self._lock:
            self._shown[key] = value
            while len(self._shown) > _MAX_CACHED:
                self._shown.popitem(last=False)
        return value
