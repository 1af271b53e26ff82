"""Files that outlive a crash, and a folder's one writer."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envgym.errors import RunError
from envgym.runs.files import LOCK, move_into_place, sole_writer, write_atomic

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom envgym.runs.files import sole_writer\n"
    "with sole_writer(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"
)


def test_name_is_on_disk_after_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(handle: int) -> None:
        happened.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def note_replace(self: Path, target: Path) -> Path:
        happened.append("renamed")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    draft = tmp_path / "draft"
    (draft / "model").mkdir(parents=True)
    (draft / "model" / "weights").write_text("1")
    move_into_place(draft, tmp_path / "place")
    assert happened == ["draft", "model", "weights", "renamed", tmp_path.name]
    happened.clear()
    write_atomic(tmp_path / "file", "1")
    assert [name.startswith(".file.") for name in happened] == [True, False, False]
    assert happened[1:] == ["renamed", tmp_path.name]


def test_folder_has_one_writer_until_that_process_is_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError) as caught, sole_writer(tmp_path):
            pass
        assert str(caught.value) == (
            f"run directory must have one writer at a time, got process {holder.pid} on {os.uname().nodename} "
            f"({tmp_path}); wait until it has ended, or stop it."
        )
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close() if holder.stdout is not None else None
    with sole_writer(tmp_path):  # nothing is stale after a kill
        assert (tmp_path / LOCK).read_text() == f"process {os.getpid()} on {os.uname().nodename}\n"
    with sole_writer(tmp_path):
        pass


def test_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"), sole_writer(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_file_system_without_locks_is_said_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.warns(UserWarning, match="file system must support file locks, got No locks"),
        sole_writer(tmp_path),
    ):
        pass


def test_new_folder_in_which_nothing_was_written_is_removed(tmp_path: Path) -> None:
    with sole_writer(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()
    with sole_writer(tmp_path / "new"):
        (tmp_path / "new" / "kept").touch()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {LOCK, "kept"}
    (tmp_path / "old").mkdir()
    with sole_writer(tmp_path / "old"):
        pass
    assert (tmp_path / "old").is_dir()
