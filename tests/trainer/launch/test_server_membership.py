"""The list of the servers that a run has started, as they die and are started again."""

from pathlib import Path

from envgym.runtime.membership import ServerKind, change_servers, read_servers, write_servers
from envgym.trainer.launch.server_membership import StartedServers

FIRST, SECOND = "http://127.0.0.1:8001", "http://127.0.0.1:8002"


def started(file: Path) -> StartedServers:
    write_servers(file, {ServerKind.POLICY: (FIRST,), ServerKind.ENV: ()})
    servers = StartedServers(file)
    servers.urls["policy-server-0"] = FIRST
    return servers


def test_a_server_that_dies_on_its_way_back_is_used_when_it_serves(tmp_path: Path) -> None:
    servers = started(tmp_path / "servers.json")
    for _ in range(3):  # it dies, and twice more before it is ready
        servers.note("policy-server-0", None)
        assert read_servers(tmp_path / "servers.json")[ServerKind.POLICY] == ()
    servers.note("policy-server-0", {"url": SECOND})
    assert read_servers(tmp_path / "servers.json")[ServerKind.POLICY] == (SECOND,)


def test_a_server_that_a_person_has_removed_does_not_come_back(tmp_path: Path) -> None:
    servers = started(tmp_path / "servers.json")
    change_servers(tmp_path / "servers.json", ServerKind.POLICY, remove=[FIRST])
    servers.note("policy-server-0", None)
    servers.note("policy-server-0", {"url": SECOND})
    assert read_servers(tmp_path / "servers.json")[ServerKind.POLICY] == ()
