"""What a user may get wrong, command by command: one sentence, exit code 2, and nothing is written or lost."""

import errno
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from envgym.runs.directory import RunDirectory
from tests.envgym.cli.conftest import SETTINGS

Command = Callable[..., tuple[int, str, str]]
ROWS: dict[str, list[tuple[str, str]]] = yaml.safe_load(
    Path(__file__).with_name("wrong_inputs.yaml").read_text("utf-8")
)
FILES = {
    "broken.py": b"import os\nopen(\n",
    "raises.py": b"x = 1 / 0\n",
    "no_env.py": b"class Thing: pass\n",
    "broken.yaml": b"envs: [\n",
    "list.yaml": b"- 1\n",
    "empty.yaml": b"",
    "twice.yaml": b"run: {}\nrun: {}\n",
    "latin.yaml": b"run: {name: \xe9}\n",
    "rows.jsonl": b'{"question": "2+2", "answer": "4"}\n',
    "pages.jsonl": b'{"id": "nile", "text": "A river."}\n',
    "cut.jsonl": b'{"id": \n',
    "file": b"",
}


@pytest.fixture
def wrong_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the commands, with files that cannot be used, and a run without a checkpoint."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    RunDirectory.create(folder / "runs" / "done", name="done", config=SETTINGS)
    monkeypatch.setenv("ENVGYM_CACHE", str(folder.parent / "cache"))
    return folder


def test_there_are_a_hundred_and_more() -> None:
    assert sum(map(len, ROWS.values())) >= 100


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.usefixtures("wrong_folder")
def test_each_wrong_input_gets_one_sentence(name: str, command: Command, files: Callable[[], dict[str, bytes]]) -> None:
    before = files()
    faults: list[str] = []
    for words, says in ROWS[name]:
        line = words if name == "commands" else f"{name} {words}"
        code, out, err = command(*shlex.split(line))
        is_sentence = err.startswith("envgym: ") and err.endswith((".\n", "?\n")) and err.count("\n") == 1
        if code != 2 or out or not is_sentence or says not in err:
            faults.append(f"envgym {line}: exit code {code}, {out + err}")
        if files() != before:
            faults.append(f"envgym {line}: wrote {sorted(files().keys() ^ before.keys())}")
    assert not faults, "\n".join(faults)


def test_port_that_is_in_use_is_told(wrong_folder: Path, command: Command) -> None:
    pytest.importorskip("bm25s")
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = command("serve-retriever", wrong_folder / "pages.jsonl", "--port", port)
    assert code == 2
    assert err.startswith(
        f"envgym: address must be free to listen on, got 127.0.0.1 port {port} (Address already in use)"
    )


@pytest.mark.usefixtures("folder")
def test_full_disk_is_one_sentence(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a write names no file

    monkeypatch.setattr(os, "fsync", refuse)
    code, _, err = command("train", "run.yaml")
    assert code == 2
    assert err.splitlines()[-1] == (
        "envgym: disk must have space left, got No space left on device (operating system); "
        "free some space, then run the command again; a run goes on with --resume."
    )
