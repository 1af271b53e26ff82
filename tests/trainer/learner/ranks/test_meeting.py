"""Where ranks meet: at a file of one machine, or at an address of rank 0."""

import socket
from pathlib import Path

from envgym.trainer.learner.ranks.meeting import Meeting, free_address, interface_to


def test_ranks_that_meet_at_a_file_are_of_one_machine(tmp_path: Path) -> None:
    meeting = Meeting.at_file(1, 2, str(tmp_path / "meeting"))
    assert meeting.is_local
    assert (meeting.file, meeting.address, meeting.local_rank) == (str(tmp_path / "meeting"), None, 1)


def test_ranks_that_meet_at_an_address_may_be_of_several_and_have_gpus_of_their_own() -> None:
    meeting = Meeting.at_address(3, 4, "10.0.0.1:999")
    assert not meeting.is_local
    assert meeting.init_method == "tcp://10.0.0.1:999"
    assert (meeting.file, meeting.address, meeting.local_rank) == (None, "10.0.0.1:999", 0)
    meeting.leave()  # there is nothing to remove


def test_free_address_can_be_listened_on() -> None:
    host, _, port = free_address("127.0.0.1").rpartition(":")
    with socket.create_server((host, int(port))) as listening:
        assert listening.getsockname() == ("127.0.0.1", int(port))


def test_this_machine_is_reached_by_loopback_and_a_name_that_is_none_by_nothing() -> None:
    assert interface_to("127.0.0.1:999") == "lo"
    assert interface_to("no-such-host.invalid:999") is None
    assert interface_to(None) is None
