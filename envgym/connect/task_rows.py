"""Tasks of an environment as rows of a data file, for SkyRL and verl; the answers are not part of them.

A row names its task by environment, settings, split, index and seed, and holds the prompt with which the episode opens.
The projects use the prompt to leave out rows that are too long; the environment gives the same one when it is played.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from envgym.authoring.openings import system_text
from envgym.chats.openai import messages_to_wire
from envgym.core.json_types import canonical
from envgym.core.messages import Message, Role
from envgym.core.tasks import Split
from envgym.errors import InvalidInput, check_known
from envgym.parsing.hermes import Hermes
from envgym.played import Opening, PlayedEpisode
from envgym.registry import make
from envgym.runs.files import write_atomic

ENV_CLASS: Final = "envgym"
"""Name of the class in SkyRL's registry, and of the agent loop in verl's."""
_NO_KEY: Final = {"ground_truth": ""}
"""The environment scores; no answer leaves it."""

Row = dict[str, Any]  # JSON


def text_prompt(opening: Opening) -> list[Row]:
    """Return the first messages in OpenAI's form; the system message also has the tools, for a chat without tools."""
    system = "\n\n".join(filter(None, (system_text(opening.messages), Hermes().instructions(opening.tools))))
    first = [Message(role=Role.SYSTEM, content=system)] if system else []
    return messages_to_wire([*first, *(item for item in opening.messages if item.role is not Role.SYSTEM)])


def _skyrl(opening: Opening, task: Row) -> Row:
    return {
        "data_source": task["env_id"],
        "prompt": text_prompt(opening),
        "env_class": ENV_CLASS,
        "reward_spec": {"method": "rule", **_NO_KEY},
        "extra_info": task,
    }


def _verl(opening: Opening, task: Row) -> Row:
    return {
        "data_source": task["env_id"],
        "agent_name": ENV_CLASS,
        "prompt": messages_to_wire(opening.messages),
        "reward_model": {"style": "rule", **_NO_KEY},
        "extra_info": task,
    }


_FORMS: Final[Mapping[str, Callable[[Opening, Row], Row]]] = MappingProxyType({"skyrl": _skyrl, "verl": _verl})
"""Project -> what writes a row for it."""
PROJECTS: Final = tuple(_FORMS)


def task_rows(
    project: str, env_id: str, settings: Mapping[str, Any], count: int, *, split: Split = Split.TRAIN, seed: int = 0
) -> list[Row]:
    """Return rows of the first `count` tasks of a split.

    Args:
        project: `skyrl` or `verl`.
        env_id: as in `envgym.make`.
        settings: keyword arguments of the environment.
        count: how many tasks.
        split: that the tasks are of.
        seed: added to the index of a task, it is the seed of the episode.

    Raises: InvalidInput, UnknownName: no such project or environment, settings that are no JSON, or a split with fewer
        tasks. InfrastructureError: an episode could not be opened.
    """
    check_known("project", project, _FORMS, where="task_rows")
    text = settings_text(settings, env_id)
    env = make(env_id, **settings)
    episode = PlayedEpisode(env)
    try:
        size = env.unwrapped.tasks.size(split)
        if count < 1 or (size is not None and count > size):
            must = "be at least 1" if size is None else f"lie in 1 to {size}, the number of {split} tasks"
            raise InvalidInput.of("rows", must, count, where=env_id, do="ask for another number")
        rows = []
        for index in range(count):
            opening = episode.open(split=split, index=index, seed=seed + index)
            task = {"env_id": env_id, "settings": text, "split": split.value, "index": index, "seed": seed + index}
            rows.append(_FORMS[project](opening, task))
        return rows
    finally:
        episode.close()


def settings_text(settings: Mapping[str, Any], env_id: str) -> str:
    """Write the settings of an environment as JSON. Raises: InvalidInput: they are none."""
    try:
        return canonical(dict(settings))
    except (TypeError, ValueError) as error:
        do = "pass texts, numbers and mappings"
        raise InvalidInput.of("settings", "be JSON", str(error), where=env_id, do=do) from None


def check_path(path: Path, *, overwrite: bool = True) -> None:
    """Check that rows can be written to a file.

    Raises: InvalidInput: the projects read no file of this name, or it exists and must not be overwritten.
    """
    if path.suffix not in (".parquet", ".jsonl"):
        do = "rename it"
        raise InvalidInput.of("file of rows", "end in .parquet or .jsonl", str(path), where="task_rows", do=do)
    do = "choose another file, or pass --overwrite"
    is_free = overwrite or not path.exists()
    InvalidInput.unless(is_free, "file of rows", "be a new file", str(path), where="task_rows", do=do)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a `.parquet` or `.jsonl` file, whole. Raises: InvalidInput: another name. OSError: it cannot be written."""
    check_path(path)
    if path.suffix == ".jsonl":
        write_atomic(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        return
    import pyarrow as pa  # heavy: loaded where it is needed
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    write_atomic(path, sink.getvalue().to_pybytes())
