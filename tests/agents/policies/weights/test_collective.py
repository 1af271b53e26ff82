"""Groups of the run and several servers, in threads over gloo: the chain, its failures, and bad addresses."""

import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store  # typed there

from envgym.agents.policies.weights import channel, collective
from envgym.agents.policies.weights.channel import Channel, ChannelFailed
from envgym.agents.policies.weights.collective import GroupAddress, RunGroup, WeightGroup
from envgym.agents.policies.weights.transport import GroupTransport, _common_hosts
from envgym.errors import InvalidInput

CPU = torch.device("cpu")
SENT = {
    "a": torch.randn(3, 5),
    "b": torch.randn(7).bfloat16(),
    "c": torch.tensor(4),
    "d": torch.zeros(0, 3),
    "e": torch.randn(4, 10).T,
}
NAMES = "xyz"


@contextmanager
def met(num_servers: int, *, timeout_s: float = 20) -> Iterator[tuple[RunGroup, list[WeightGroup]]]:
    """Yield the run's side of an open group, and those of its servers."""
    run = RunGroup("127.0.0.1", NAMES[:num_servers], "gloo", CPU, timeout_s=timeout_s)
    with ThreadPoolExecutor() as pool:
        joining = [pool.submit(WeightGroup, run.address(name), CPU) for name in run.servers]
        run.open()
        servers = [future.result() for future in joining]
    try:
        yield run, servers
    finally:
        run.close()
        for server in servers:
            server.close()


def received(server: WeightGroup) -> dict[str, Tensor]:
    return dict(server.receive(server.receive_description()))


def check_equal(got: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> None:
    assert list(got) == list(sent)
    for name, tensor in sent.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got[name], tensor)


def send(run: RunGroup, servers: Sequence[WeightGroup], sent: Mapping[str, Tensor]) -> None:
    """Send to servers, and check what each receives."""
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(received, server) for server in servers]
        run.send(list(sent.items()))
        for future in futures:
            check_equal(future.result(), sent)


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_every_server_receives_what_is_sent_bit_for_bit_in_buckets_and_chunks_of_any_size(
    monkeypatch: pytest.MonkeyPatch, num_servers: int
) -> None:
    with met(num_servers) as (run, servers):
        for bucket, chunk in ((1, 1), (64, 5), (1 << 20, 16), (1 << 20, 1 << 20)):
            monkeypatch.setattr(channel, "_BUCKET_BYTES", bucket)
            monkeypatch.setattr(channel, "_CHUNK_BYTES", chunk)
            send(run, servers, SENT)
        assert run.is_sound


def test_the_run_sends_every_byte_once_whatever_the_number_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain: each rank sends to the next one only, and all ranks but the last send the same bytes."""
    sizes = Counter[int]()
    gloo: Any = dist.ProcessGroupGloo  # `send` is not in torch's stubs
    sound = gloo.send

    def counted(group: Any, tensors: list[Tensor], destination: int, tag: int) -> Any:
        sizes[destination] += sum(tensor.nbytes for tensor in tensors)
        return sound(group, tensors, destination, tag)

    monkeypatch.setattr(gloo, "send", counted)
    of_run = set[int]()
    for num_servers in (1, 3):
        sizes.clear()
        with met(num_servers) as (run, servers):
            send(run, servers, SENT)
        assert set(sizes) == set(range(1, num_servers + 1))
        assert set(sizes.values()) == {sizes[1]}
        of_run.add(sizes[1])
    assert len(of_run) == 1
    assert sum(tensor.nbytes for tensor in SENT.values()) < of_run.pop() < 1000, "what is more is the description"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_server_that_dies_in_the_middle_takes_no_other_along(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    """It dies between two tensors, each of which is a bucket; what the others have received is not yielded again."""
    monkeypatch.setattr(channel, "_BUCKET_BYTES", 1)
    with met(3, timeout_s=600) as (run, servers), ThreadPoolExecutor() as pool:

        def die(server: WeightGroup) -> list[str]:
            names = [name for name, _ in zip("ab", server.receive(server.receive_description()), strict=False)]
            server.close()
            run.miss(NAMES[lost])  # as its connection has ended
            return names

        futures = [pool.submit(die if number == lost else received, each) for number, each in enumerate(servers)]
        started = time.monotonic()
        run.send(list(SENT.items()))
        for number, future in enumerate(futures):
            if number == lost:
                assert future.result() == ["a", "b"]
            else:
                check_equal(future.result(), SENT)  # type: ignore[arg-type]
        assert time.monotonic() - started < 300, "no wait runs out"
        assert not run.is_sound
        assert [run.missed_reason(name) is not None for name in NAMES] == [number == lost for number in range(3)]
        with pytest.raises(RuntimeError, match="the server has left the group"):
            servers[lost].receive_description()


def test_a_server_that_does_nothing_is_missed_and_the_others_receive_all() -> None:
    """The second of three servers never receives: the third waits for it in vain, and then both others meet again."""
    with met(3, timeout_s=0.8) as (run, servers):
        send(run, [servers[0], servers[2]], SENT)
        assert [run.missed_reason(name) is not None for name in NAMES] == [False, True, False]
        with pytest.raises(RuntimeError, match="did not wait for this server"):
            received(servers[1])


def test_a_server_that_does_not_come_is_missed_and_the_others_meet() -> None:
    run = RunGroup("127.0.0.1", NAMES, "gloo", CPU, timeout_s=0.8)
    with ThreadPoolExecutor() as pool:
        joining = [pool.submit(WeightGroup, run.address(name), CPU) for name in "xz"]
        run.open()
        servers = [future.result() for future in joining]
    assert not run.is_sound
    send(run, servers, SENT)
    with pytest.raises(RuntimeError, match="did not wait for this server"):
        WeightGroup(run.address("y"), CPU)
    run.close()


def test_servers_that_cannot_reach_each_other_receive_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, sound = list[int](), Channel.open

    def refusing(store: Store, rank: int, size: int, *arguments: Any, **named: Any) -> Channel:
        if rank and size > 2:
            raise ChannelFailed("no way to another server")
        opened.append(size)
        return sound(store, rank, size, *arguments, **named)

    monkeypatch.setattr(Channel, "open", refusing)
    run = RunGroup("127.0.0.1", NAMES[:2], "gloo", CPU, timeout_s=0.5)

    def take(name: str) -> dict[str, Tensor]:
        return received(WeightGroup(run.address(name), CPU))

    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(take, name) for name in run.servers]
        run.open()
        run.send(list(SENT.items()))
        for future in futures:
            check_equal(future.result(), SENT)
    assert opened == [3, 3, 2, 2, 2, 2], "the run in vain, twice; then the run and a server, twice"
    assert not any(run.missed_reason(name) for name in run.servers)
    run.close()


def test_a_server_that_has_everything_takes_part_again_after_a_retry_without_it() -> None:
    """The second of two servers loses the first bucket, so the second channel of the run has this server only."""
    with met(2, timeout_s=600) as (run, servers):
        lossy: Any = servers[1]._channel
        sound, num_calls = lossy.broadcast, Counter[str]()

        def lose(data: Tensor) -> Tensor:
            num_calls["broadcast"] += 1
            received: Tensor = sound(data)
            if num_calls["broadcast"] == 3:  # after the length and the description
                while not run._store.check(["whole/1/1"]):
                    time.sleep(0.001)  # until the first server has everything
                raise ChannelFailed("a blip")
            return received

        lossy.broadcast = lose
        started = time.monotonic()
        send(run, servers, SENT)
        assert (run._num_channels, run._members) == (2, {2})
        send(run, servers, SENT)
        assert (run._num_channels, run._members) == (3, {1, 2}), "one channel to both, and not one to each"
        send(run, servers, SENT)
        assert run._num_channels == 3
        assert time.monotonic() - started < 300, "no wait runs out"
        assert [run.missed_reason(name) for name in run.servers] == [None, None]


def test_a_failure_that_repeats_ends_after_one_channel_for_each_server_and_its_reason_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two channels to both servers fail, then a channel to each: four, and no wait runs out."""
    monkeypatch.setattr(collective, "_SERVER_PATIENCE", 1)

    def refuse(channel: Channel, data: Tensor) -> Tensor:
        raise ChannelFailed("Duplicate GPU detected")

    with met(2, timeout_s=1) as (run, servers), ThreadPoolExecutor() as pool:
        monkeypatch.setattr(Channel, "broadcast", refuse)
        futures = [pool.submit(received, server) for server in servers]
        with pytest.raises(ChannelFailed, match="no server of the group is left: Duplicate GPU detected"):
            run.send(list(SENT.items()))
        assert run._num_channels == 4
        assert [run.missed_reason(name) for name in run.servers] == ["Duplicate GPU detected"] * 2
        for future in futures:
            with pytest.raises(RuntimeError):
                future.result()


def test_a_send_without_tensors_reaches_every_server() -> None:
    with met(2, timeout_s=1) as (run, servers):
        send(run, servers, {})
        send(run, servers, SENT)
        assert run.is_sound


def test_without_any_server_the_run_says_so() -> None:
    run = RunGroup("127.0.0.1", NAMES[:1], "gloo", CPU, timeout_s=0.05)
    with pytest.raises(ChannelFailed, match="no server has come"):
        run.open()
    with pytest.raises(ChannelFailed, match="no server of the group is left"):
        run.send(list(SENT.items()))


def test_servers_whose_run_has_gone_in_the_middle_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run describes three tensors, sends one, and is gone with its connections."""
    monkeypatch.setattr(channel, "_BUCKET_BYTES", 1)
    monkeypatch.setattr(collective, "_SERVER_PATIENCE", 1)
    sent = list(SENT.items())[:3]

    def die(bucket: object) -> Iterator[object]:
        yield sent[:1]
        run.close()
        raise ChannelFailed("the run dies")

    def take(server: WeightGroup) -> list[str]:
        names: list[str] = []
        with pytest.raises(RuntimeError):
            names.extend(name for name, _ in server.receive(server.receive_description()))
        return names

    with met(2, timeout_s=1) as (run, servers), ThreadPoolExecutor() as pool:
        futures = [pool.submit(take, server) for server in servers]
        monkeypatch.setattr(channel, "buckets_of", die)
        with pytest.raises(ChannelFailed, match="this process has left the group"):
            run.send(sent)
        for future in futures:
            assert future.result() == ["a"]


def test_a_rank_outside_of_the_group_is_one_sentence() -> None:
    good = {"host": "127.0.0.1", "port": 9, "backend": "gloo", "timeout_s": 1, "rank": 1, "world_size": 2}
    assert GroupAddress.parse(good, where="here") == GroupAddress(**good)  # type: ignore[arg-type]
    for rank, size, sentence in (
        (2, 2, "rank must be from 1 to world_size - 1, which is 1, got 2 (here); send the rank of a server; 0 is the"),
        (0, 2, "rank must be from 1 to world_size - 1, which is 1, got 0 (here); send the rank"),
        (1, 5000, "world_size must be at most 4096, got 5000 (here); send weights to fewer servers at once."),
    ):
        with pytest.raises(InvalidInput) as refused:
            GroupAddress.parse({**good, "rank": rank, "world_size": size}, where="here")
        assert str(refused.value).startswith(sentence)


def test_groups_are_those_of_an_address_and_are_kept_while_their_servers_are_the_same() -> None:
    transport = GroupTransport("gloo", device=CPU)
    transport._hosts |= {"x": "127.0.0.1", "y": "127.0.0.2", "z": "127.0.0.2"}  # as they would be found
    servers = {"x": ("x", 1), "y": ("b", 1), "z": ("a", 1)}
    groups = transport.find_groups(servers)
    assert [(group.host, group.servers) for group in groups] == [("127.0.0.1", ("x",)), ("127.0.0.2", ("z", "y"))]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", groups[1].port))  # it listens on the other address only
    transport.release(groups)
    assert transport.find_groups(servers) == groups
    transport.release(groups)
    (alone,) = transport.find_groups({"y": ("b", 1)})
    assert transport.groups == [alone], "y has left its group, and x is not used any more"
    assert not groups[0].is_sound
    assert transport._hosts == {"y": "127.0.0.2"}
    transport.close()


def test_servers_on_this_machine_use_the_address_that_others_reach() -> None:
    assert _common_hosts({"x": "127.0.0.1", "y": "::1"}) == {"x": "127.0.0.1", "y": "::1"}
    mixed = {"x": "127.0.0.1", "y": "10.0.0.5", "z": "10.0.0.5"}
    assert _common_hosts(mixed) == dict.fromkeys("xyz", "10.0.0.5")
    assert _common_hosts({**mixed, "z": "10.0.1.5"}) == {"x": "10.0.0.5", "y": "10.0.0.5", "z": "10.0.1.5"}
