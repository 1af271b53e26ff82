"""Folders of tasks in the form of Harbor and Terminal-Bench: found, read, checked, and divided into splits."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType

from envgym.authoring import ListTasks
from envgym.core.json_types import content_hash
from envgym.core.tasks import TEST_FRACTION, Split, Task, split_of_key
from envgym.envs.code._harbor_config import OwnPart, TaskFile, description_of, own_part, read_task_file
from envgym.errors import InvalidInput

_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_MARKS = ("task.toml", "task.yaml", "instruction.md", "environment", "tests")
"""A folder that holds one of these is meant to be a task."""
_PARTS = ("task.toml", "instruction.md", "environment", "environment/Dockerfile", "tests", "solution")
MAX_FILES = 10_000

Files = Mapping[str, bytes]
"""Relative path -> content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """A task: what its machine is made of, what the agent reads, and how the result is tested."""

    name: str
    where: str
    """The place, for errors."""
    instruction: str
    file: TaskFile
    own: OwnPart = field(default_factory=OwnPart)
    image: str | None = None
    """An image that exists; None: `context` is built."""
    context: Path | None = None
    """Folder of the Dockerfile."""
    tests: Path | Files = field(default_factory=lambda: MappingProxyType({}))
    solution: Path | Files | None = None
    prepare: str = ""
    """Shell command that root runs in a new machine, before the agent and before the tests."""
    conceal: str = ""
    """Shell command that root runs after `prepare`, before the agent alone."""
    excluded: tuple[str, ...] = ()
    """Names at the top of a kept path that a new container keeps as they are."""
    key: str = ""
    """Hash of all files."""


def read_folder(folder: Path) -> list[Path]:
    """Return the task folders in a folder, or the folder itself if it is one. Raises: InvalidInput: there is none."""
    where, do = str(folder), "pass the path of a task folder, or of a folder of task folders"
    InvalidInput.unless(folder.is_dir(), "folder", "be a directory", str(folder), where="code/harbor-v0", do=do)
    if (folder / "task.toml").exists():
        return [folder]
    parts = sorted(part for part in folder.iterdir() if part.is_dir() and not part.name.startswith("."))
    folders = [part for part in parts if any((part / mark).exists() for mark in _MARKS)]
    InvalidInput.unless(folders, "folder", "hold task folders", "none with a task.toml", where=where, do=do)
    return folders


def read_task(folder: Path) -> HarborTask:
    """Read one task folder. Raises: InvalidInput: a part is missing or refused; the sentence names the folder."""
    where = str(folder)
    if (folder / "task.yaml").exists() and not (folder / "task.toml").exists():
        do = "convert the folder with Harbor's own command"
        raise InvalidInput.of(
            "task", "have a task.toml", "a task.yaml of Terminal-Bench's first form", where=where, do=do
        )
    root = folder.resolve()
    for name in _PARTS:
        is_inside = (folder / name).resolve().is_relative_to(root)
        must, do = "stay in the task folder", "copy what it leads to"
        InvalidInput.unless(is_inside, f"link {name}", must, "one that leads out", where=where, do=do)
    do = "add the file"
    for name in ("task.toml", "instruction.md"):
        InvalidInput.unless((folder / name).is_file(), "task", f"have a file {name}", "none", where=where, do=do)
    file = read_task_file(folder / "task.toml", where=where)
    environment = folder / "environment"
    compose = next((name for name in _COMPOSE if (environment / name).exists()), None)
    do = "describe one container by a Dockerfile"
    InvalidInput.unless(compose is None, "environment", "be one container", str(compose), where=where, do=do)
    image = file.environment.docker_image
    has_dockerfile = (environment / "Dockerfile").is_file()
    must, do = "have environment/Dockerfile or docker_image", "add one of them"
    InvalidInput.unless(image or has_dockerfile, "task", must, "neither", where=where, do=do)
    must, do = "have tests/test.sh", "add the script that writes the reward file"
    InvalidInput.unless((folder / "tests" / "test.sh").is_file(), "task", must, "none", where=where, do=do)
    instruction = strip_canary(_text(folder / "instruction.md", where))
    must, do = "hold the text of the task", "write it"
    InvalidInput.unless(instruction.strip(), "instruction.md", must, "an empty file", where=where, do=do)
    solution = folder / "solution"
    parts = {part: read_files(folder / part, where=where) for part in ("tests", "solution") if (folder / part).is_dir()}
    return HarborTask(
        name=folder.name,
        where=where,
        instruction=instruction,
        file=file,
        own=own_part(file, where=where),
        image=image,
        context=None if image else environment,
        tests=folder / "tests",
        solution=solution if "solve.sh" in parts.get("solution", {}) else None,
        key=_digest(folder, parts),
    )


def strip_canary(text: str) -> str:
    """Return an instruction without the comment lines at its beginning that mark it as part of a benchmark."""
    lines = text.splitlines(keepends=True)
    count = 0
    while count < len(lines) and _CANARY.fullmatch(lines[count].strip()):
        count += 1
    return "".join(lines[count:]).lstrip("\n") if count else text


def files_of(part: Path | Files, *, where: str) -> Files:
    """Return the files of a part of a task. Raises: as `read_files`."""
    return read_files(part, where=where) if isinstance(part, Path) else part


def read_files(folder: Path, *, where: str) -> dict[str, bytes]:
    """Return the files below a folder. Raises: InvalidInput: a link leads out of it, or it cannot be read."""
    files: dict[str, bytes] = {}
    root = folder.resolve()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.resolve().is_relative_to(root):
            must, do = "stay in its folder", "copy what it leads to"
            raise InvalidInput.of(f"link {folder.name}/{name}", must, "one that leads out", where=where, do=do)
        if path.is_file():
            files[name] = _bytes(path, where)
    do = "put them into an archive"
    InvalidInput.unless(
        len(files) <= MAX_FILES, folder.name, f"hold at most {MAX_FILES} files", len(files), where=where, do=do
    )
    return files


def _bytes(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput.of(path.name, "be readable", str(error), where=where, do="change its permissions") from None


def _text(path: Path, where: str) -> str:
    try:
        return _bytes(path, where).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput.of(path.name, "be UTF-8 text", str(error), where=where, do="convert it") from None


def _digest(folder: Path, parts: Mapping[str, Files]) -> str:
    """Return a hash of all that makes the task: 32 hex digits."""
    digest = blake2b(digest_size=16)
    own = [folder / "task.toml", folder / "instruction.md"]
    context = folder / "environment"
    own += sorted(path for path in context.rglob("*") if path.is_file() and not path.is_symlink())
    entries = [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in own]
    entries += [(f"{part}/{name}", content) for part, files in parts.items() for name, content in files.items()]
    for name, content in entries:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


# ---- splits ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How tasks are divided."""

    splits: Mapping[str, tuple[str, ...]] | None = None
    """Split -> names or patterns of tasks; `test` comes first. None: by `share`."""
    share: float = TEST_FRACTION
    seed: int = 0


def make_tasks(tasks: Sequence[HarborTask], splitting: Splitting, *, where: str) -> ListTasks:
    """Return the tasks in their splits. Raises: InvalidInput: a pattern that fits no task."""
    sides = _sides({task.name: task.key for task in tasks}, splitting, where)
    split_tasks = [_task(task, sides[task.name]) for task in tasks if task.name in sides]
    return ListTasks(split_tasks)


def _task(task: HarborTask, split: Split) -> Task:
    payload = {"task": task.name, "content": task.key}
    metadata = description_of(task.file)
    return Task(id=task.name, prompt=task.instruction, payload=payload, split=split, metadata=metadata)


def _sides(keys: Mapping[str, str], splitting: Splitting, where: str) -> dict[str, Split]:
    if splitting.splits is None:
        if len(keys) == 1:
            return dict.fromkeys(keys, Split.TRAIN)
        hashes = {name: content_hash({"task": name, "content": key}) for name, key in keys.items()}
        return {name: split_of_key(key, splitting.share, splitting.seed) for name, key in hashes.items()}
    sides: dict[str, Split] = {}
    for split in (Split.TRAIN, Split.TEST):  # the later one wins
        patterns = splitting.splits.get(split.value, ())
        sides |= dict.fromkeys(_matching(patterns, keys, split, where), split)
    return {name: sides[name] for name in keys if name in sides}


def _matching(patterns: Sequence[str], names: Collection[str], split: Split, where: str) -> Iterator[str]:
    for pattern in patterns:
        matches = [name for name in names if fnmatchcase(name, pattern)]
        must, do = "fit a task", f"name one of {', '.join(sorted(names)[:5])}"
        InvalidInput.unless(matches, f"splits.{split}", must, pattern, where=where, do=do)
        yield from matches
