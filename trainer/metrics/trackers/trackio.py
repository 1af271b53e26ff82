"""trackio: a local database with a dashboard, a Space of Hugging Face, or a server of your own."""

from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ClassVar
from uuid import uuid4

from envgym.chats.fields import Json
from envgym.chats.openai import messages_to_wire
from envgym.core.json_types import JsonObject
from envgym.core.messages import Message, Role
from envgym.core.trajectory import Trajectory
from envgym.core.tree import Tree
from envgym.core.turns import Invalid
from envgym.errors import RunError, SettingsError
from envgym.trainer.metrics.trackers.base import TrackedRun, Tracker, load_package
from envgym.trainer.metrics.update import Metrics

EPISODES = "episodes"
"""Name under which the traces of a step are logged."""


class Trackio(Tracker):
    """Log to trackio, with a few episodes of every step as traces."""

    NAME: ClassVar[str] = "trackio"

    def __init__(
        self,
        *,
        project: str = "envgym",
        space_id: str | None = None,
        server_url: str | None = None,
        episodes: int = 4,
    ) -> None:
        """Name the project and where it is stored.

        Args:
            project: Name of the project that the run is logged to.
            space_id: A Space of Hugging Face, such as `user/name`; None: as the variable TRACKIO_SPACE_ID says, else
                the database in the folder TRACKIO_DIR of this machine.
            server_url: Address of your own trackio server; None: as the variable TRACKIO_SERVER_URL says.
            episodes: Episodes of every step that are logged as traces, at most; 0 logs none.

        Raises: SettingsError: the package is not installed, or `episodes` is negative.
        """
        super().__init__()
        do = "set 0 to log no episodes"
        SettingsError.unless(episodes >= 0, "episodes", "be at least 0", episodes, where="tracker trackio", do=do)
        self._trackio = load_package("trackio", tracker=self.NAME, package="trackio", extra="trackio")
        self._project, self._num_episodes = project, episodes
        self._places = {"space_id": space_id, "server_url": server_url}
        self._run: Any = None  # trackio.Run
        self._is_local, self._is_new = True, True
        self._traces: list[Any] = []  # trackio.Trace
        self._last: tuple[int, str] | None = None

    def create_run(self, name: str) -> str:
        """Return a name with random digits: it is the run's id in a project."""
        return f"{name}-{uuid4().hex[:8]}"

    def open_run(self, run: TrackedRun) -> None:
        self._run, self._last = None, None
        places = self._trackio.utils.resolve_space_id_and_server_url(**self._places)
        self._is_local, self._is_new = places == (None, None), run.attempt == 1
        if self._is_local:
            _check_writable(Path(self._trackio.TRACKIO_DIR))
        self._run = self._trackio.init(
            project=self._project, name=run.id, config=dict(run.config), resume="allow", embed=False, **self._places
        )

    def on_episodes(self, step: int, trees: Sequence[Tree]) -> None:
        """Keep a few of the step's episodes, evenly taken from its trees, as traces of its row."""
        num_traces = min(self._num_episodes, len(trees))
        picked = [trees[number * len(trees) // num_traces] for number in range(num_traces)]
        self._traces = [self._trace(Trajectory(tree=tree, leaf=tree.leaves[0]), step) for tree in picked if tree.leaves]

    def send(self, step: int, metrics: Metrics) -> None:
        traces, self._traces = self._traces, []
        self._run.log({**metrics, **({EPISODES: traces} if traces else {})}, step=step)
        self._last = step, next(reversed(metrics))

    def steps_of(self, metric: str) -> Collection[int] | None:
        """Return the steps at which the run has a metric; None for a run that is stored elsewhere and continued."""
        if not self._is_local:
            return () if self._is_new else None
        rows = self._trackio.SQLiteStorage.get_logs(self._project, self._run.name)
        return {row["step"] for row in rows if metric in row}

    def close_run(self, *, failed: bool) -> None:
        """Wait until all rows are stored. A failed run gets an alert, because trackio has no status of a run.

        Raises: RunError: the last row is not in the database of this machine.
        """
        if self._run is None:
            return
        if failed:
            level = self._trackio.AlertLevel.ERROR
            self._run.alert(title="run failed", text="It ended without a report.", level=level)
        self._run.finish()
        if self._last is not None and self._is_local:
            step, metric = self._last
            is_stored, where = step in (self.steps_of(metric) or ()), str(self._trackio.TRACKIO_DIR)
            do = "free space on its disk, then resume the run, which sends the rest"
            RunError.unless(is_stored, "trackio", "have stored the last row", "no such row", where=where, do=do)

    def _trace(self, episode: Trajectory, step: int) -> Any:  # trackio.Trace
        return self._trackio.Trace(messages=conversation(episode), metadata=facts(episode, step))


def conversation(episode: Trajectory) -> list[Json]:
    """Return an episode as messages in OpenAI's form, with the thinking of the policy as `reasoning_content`."""
    messages = list(messages_to_wire(episode.tree.messages))
    for outcome in episode.outcomes:
        if outcome is not None:
            action = outcome.action
            reply = Message(role=Role.ASSISTANT, content=action.content, tool_calls=action.tool_calls)
            thinking = {} if action.thinking is None else {"reasoning_content": action.thinking}
            messages += [messages_to_wire([reply])[0] | thinking, *messages_to_wire(outcome.observation.messages)]
    return messages


def facts(episode: Trajectory, step: int) -> JsonObject:
    """Return the metadata of an episode's trace; an invalid reward has a reason in place of a number."""
    tree, reward = episode.tree, episode.reward
    outcome: JsonObject = (
        {"status": "error", "error": reward.reason}
        if isinstance(reward, Invalid)
        else {"status": "ok", "reward": reward.value}
    )
    return {
        "env": tree.env_id,
        "task": tree.task_id,
        "episode": tree.id,
        "step": step,
        "ending": episode.ending.value,
        "turns": len(episode.turns),
        **outcome,
    }


def _check_writable(folder: Path) -> None:
    """See that a file can be made in a folder, because trackio itself only warns. Raises: RunError: it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        do = "set the variable TRACKIO_DIR to another folder"
        raise RunError.of("trackio's folder", "be writable", str(error), where=str(folder), do=do) from None
