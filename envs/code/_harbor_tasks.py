"""The tasks of an environment of containers: read once for all instances, found again by the task of an episode."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from envgym.authoring import ColumnNames, FileTasks
from envgym.core.tasks import TEST_FRACTION, Split, Task, TaskSource
from envgym.envs.code._harbor_config import unread_keys
from envgym.envs.code._harbor_folder import HarborTask, Splitting, make_tasks, read_folder, read_task
from envgym.envs.code._harbor_settings import SweSettings
from envgym.envs.code._harbor_swe import FIELDS, swe_task
from envgym.errors import InvalidInput, check_known
from envgym.runtime.cache import source_key

DEFAULT_FOLDER = str(Path(__file__).with_name("data") / "harbor")
DEFAULT_SPLITS: Mapping[str, str | Sequence[str]] = MappingProxyType(
    {"train": "*", "test": ("count-orders", "merge-configs", "sort-log")}
)
_WHERE = "code/harbor-v0"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The tasks, and what each of them is."""

    tasks: TaskSource
    find: Callable[[Task], HarborTask]
    """Returns what a task is. Raises: InvalidInput: it is none of these."""
    unread: Mapping[str, str]
    """Task -> what of it is not read, for the conformance check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSettings:
    """What decides the tasks of a folder."""

    folder: str
    splits: tuple[tuple[str, tuple[str, ...]], ...] | None
    share: float
    seed: int
    skips_bad_tasks: bool
    stamp: str
    """Digest of paths, sizes and times of all files: a folder that has changed is read again."""

    @classmethod
    def of(
        cls,
        folder: str,
        splits: Mapping[str, str | Sequence[str]] | None,
        share: float | None,
        seed: int,
        on_bad_task: str,
    ) -> "FolderSettings":
        """Check the settings. Raises: InvalidInput: a value breaks a rule."""
        check_known("on_bad_task", on_bad_task, ("fail", "skip"), where=_WHERE)
        for name in splits or {}:
            Split.parse(name, where="splits")
        if share is not None and not 0.0 <= share <= 1.0:
            raise InvalidInput.of("test_share", "lie in [0, 1]", share, where=_WHERE, do="pass e.g. 0.2")
        if share is not None and splits is not None:
            must, do = "be left out where splits are given", "leave one of them out"
            raise InvalidInput.of("test_share", must, share, where=_WHERE, do=do)
        patterns = {
            name: (value,) if isinstance(value, str) else tuple(value) for name, value in (splits or {}).items()
        }
        return cls(
            folder=folder,
            splits=None if splits is None else tuple(patterns.items()),
            share=TEST_FRACTION if share is None else share,
            seed=seed,
            skips_bad_tasks=on_bad_task == "skip",
            stamp=source_key(folder),
        )


def load_supply(
    swe: SweSettings | None,
    folder: str | None,
    splits: Mapping[str, str | Sequence[str]] | None,
    *,
    test_share: float | None,
    split_seed: int,
    on_bad_task: str,
) -> Supply:
    """Return the tasks that the settings of the environment ask for. Raises: InvalidInput: one breaks a rule."""
    if swe is not None:
        for name, value in (("folder", folder), ("splits", splits)):
            do = "leave one out; name the files of the splits in swe.instances"
            InvalidInput.unless(value is None, name, "be left out with swe", value, where=_WHERE, do=do)
        return load_instances(swe, test_share, split_seed)
    if folder is None and splits is None and test_share is None:
        splits = DEFAULT_SPLITS
    return load_folder(FolderSettings.of(folder or DEFAULT_FOLDER, splits, test_share, split_seed, on_bad_task))


@lru_cache(maxsize=8)
def load_folder(settings: FolderSettings) -> Supply:
    """Read the tasks of a folder. Raises: InvalidInput: the sentence names the task folder that breaks a rule."""
    tasks: dict[str, HarborTask] = {}
    left_out = []
    for folder in read_folder(Path(settings.folder)):
        try:
            tasks[folder.name] = read_task(folder)
        except InvalidInput as error:
            if not settings.skips_bad_tasks:
                raise
            left_out.append(str(error).splitlines()[0])
    for reason in left_out:
        _log.warning("A task is left out: %s", reason)
    do = "correct the folders"
    InvalidInput.unless(tasks, "folder", "hold a task that can be used", "none", where=settings.folder, do=do)
    splitting = Splitting(
        splits=None if settings.splits is None else dict(settings.splits), share=settings.share, seed=settings.seed
    )

    def find(task: Task) -> HarborTask:
        name = task.payload.get("task")
        work = tasks.get(name) if isinstance(name, str) else None
        if work is None:
            raise InvalidInput.of("task", "be one of the folder", task.id, where=_WHERE, do="take one from env.tasks")
        return work

    unread = {f"keys of {name}": keys for name, work in tasks.items() if (keys := _unread(work))}
    unread |= {f"folder {number}": reason for number, reason in enumerate(left_out, 1)}
    return Supply(tasks=make_tasks(list(tasks.values()), splitting, where=settings.folder), find=find, unread=unread)


def _unread(work: HarborTask) -> str:
    keys = unread_keys(work.file)
    return f"{', '.join(keys)} of task.toml: not read" if keys else ""


def load_instances(settings: SweSettings, test_share: float | None, split_seed: int) -> Supply:
    """Return the instances of a file in the form of SWE-bench, each checked. Raises: InvalidInput: as `FileTasks`."""
    columns = ColumnNames(prompt="problem_statement", payload={name: name for name in FIELDS}, id="instance_id")
    source = FileTasks(settings.instances, columns, test_share=test_share, split_seed=split_seed)

    def find(task: Task) -> HarborTask:
        return swe_task(task, settings)

    for split in Split:
        for index in range(source.size(split) or 0):
            find(source.task(split, index))
    return Supply(tasks=source, find=find, unread={})
