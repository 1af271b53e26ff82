"""TensorBoard: event files in the folder `tensorboard` of the run directory."""

from collections.abc import Collection
from importlib.util import find_spec
from typing import Any, ClassVar

from envgym.trainer.metrics.trackers.base import TrackedRun, Tracker
from envgym.trainer.metrics.update import Metrics


class TensorBoard(Tracker):
    """Write event files into the run directory. Without the package tensorboard, write nothing.

    A resumed run tells readers to leave out events after its checkpoint, so that repeated steps replace earlier ones.
    """

    NAME: ClassVar[str] = "tensorboard"
    LIMIT_S: ClassVar[float | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._writer: Any = None  # SummaryWriter, of a package that is loaded late
        self._is_new = True

    def create_run(self, name: str) -> str:
        return self.NAME

    def open_run(self, run: TrackedRun) -> None:
        folder = run.directory / self.NAME
        self._is_new = not folder.exists()
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter  # heavy: loaded where it is needed

            self._writer = SummaryWriter(str(folder), purge_step=run.first_step + 1)

    def send(self, step: int, metrics: Metrics) -> None:
        if self._writer is None:
            return
        from tensorboard.compat.proto.summary_pb2 import (  # type: ignore[import-untyped]  # installed: there is a writer
            Summary,
        )

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.file_writer.add_summary(Summary(value=values), step)  # one event: ten times faster than one each
        self._writer.flush()  # else a kill loses the steps of two minutes

    def steps_of(self, metric: str) -> Collection[int] | None:
        """Return no steps for new event files, else None: reading long event files takes minutes."""
        return () if self._is_new else None

    def close_run(self, *, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()
