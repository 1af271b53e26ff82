"""What a launcher has started ends with it, with bwrap, and with the host; it sees nothing of the machine."""

import os
import select
import signal

import pytest

from envgym.errors import ToolInfraFailure
from envgym.sandbox import Limits, Sandbox
from envgym.sandbox._launcher_client import LauncherClient
from envgym.sandbox._watch import close_all
from envgym.sandbox.bwrap import _start
from envgym.sandbox.records import Program
from tests.envgym.sandbox.processes import running


def launchers() -> list[int]:
    return running(rb"_launcher\.py")


@pytest.mark.parametrize("killed", ["launcher", "its clone", "bwrap", "nobody"])
def test_a_program_ends_when_what_it_hangs_on_is_gone(bwrap: Sandbox, killed: str) -> None:
    assert bwrap.run(["true"]).is_success
    started, process = _start(Program(argv=["sleep", "99"]), Limits())
    if killed == "nobody":  # but the host follows it no longer
        close_all(started.report)
    elif killed == "bwrap":
        with open(f"/proc/{started.pid}/status", encoding="utf-8") as status:
            parent = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
        os.kill(parent, signal.SIGKILL)
    else:
        os.kill(launchers()[killed == "its clone"], signal.SIGKILL)
    assert select.select([process], [], [], 30)[0] == [process]
    close_all(process, started.stdout, started.stderr, started.report)
    assert bwrap.run(["true"]).is_success


def test_the_launcher_serves_in_a_root_without_the_machine_and_without_rights(bwrap: Sandbox) -> None:
    assert bwrap.run(["true"]).is_success
    server = launchers()[-1]
    tops = {"usr", "etc", "proc", "dev", "tmp", "wheel", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}
    root = os.listdir(f"/proc/{server}/root")
    assert not {"home", "var", "mnt", "srv", "sys", "run"} & set(root)
    assert tops & set(root) > {"usr", "etc", "proc"}
    assert os.path.realpath(f"/proc/{server}/ns/pid") != os.path.realpath("/proc/self/ns/pid")
    with open(f"/proc/{server}/status", encoding="utf-8") as status:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in status)
    assert fields["Uid"].split()[1] != "0"
    assert int(fields["CapEff"], 16) == 0 or os.geteuid() != 0


def test_a_launcher_that_cannot_start_leaves_no_descriptor(bwrap: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bwrap.run(["true"]).is_success

    def dies(self: LauncherClient) -> bool:
        raise ToolInfraFailure("it ended at once")

    monkeypatch.setattr(LauncherClient, "is_enclosed", dies)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(ToolInfraFailure, match="it ended at once"):
            bwrap.run(["true"], b"1", {"a": b"2"})
    assert len(os.listdir("/proc/self/fd")) == before
