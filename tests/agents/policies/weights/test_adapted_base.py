"""Updates of LoRA runs bring the adapters only: what is sampled from equals the weights that the learner merges."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from envgym.agents.models.loading import load
from envgym.agents.models.weights import AdaptedWeights, merged_weights
from envgym.agents.policies.serving.backend import ServedModel
from envgym.agents.policies.serving.client import ServedPolicy
from envgym.agents.policies.serving.server import load_server
from envgym.agents.policies.weights.adapted_base import AdaptedBase, read_changes
from envgym.agents.policies.weights.transport import FileTransport, GroupTransport, SharedTransport, WeightTransport
from envgym.agents.policies.weights.weight_store import StoredWeights, compute_digests
from envgym.errors import InvalidInput, PolicyFailure, UnknownName
from envgym.runtime.http.client import ConnectionFailed
from tests.agents.policies.serving.running import Served, changed, serving
from tests.agents.policies.serving.test_client import QUICK, ask
from tests.agents.policies.small_models import adapted, llama, request, train_adapters

CPU = torch.device("cpu")
TRANSPORTS: dict[str, Callable[[Path], WeightTransport]] = {
    "files": FileTransport,
    "ipc": lambda folder: SharedTransport(CPU),
    "gloo": lambda folder: GroupTransport("gloo", device=CPU, timeout_s=20),
}


def size(named_tensors: Iterable[tuple[str, Tensor]]) -> int:
    return sum(tensor.nbytes for _, tensor in named_tensors)


def counted(transport: WeightTransport) -> list[int]:
    """Count the bytes of every version and base that is published from now on."""
    sizes: list[int] = []
    for method in ("publish", "publish_base"):
        publish: Any = getattr(transport, method)

        def counting(named_tensors: Any, *arguments: Any, publish: Any = publish, **named: Any) -> object:
            tensors = list(named_tensors)
            sizes.append(size(tensors))
            return publish(tensors, *arguments, **named)

        setattr(transport, method, counting)
    return sizes


def weights_of(server: Served) -> dict[str, Tensor]:
    return dict(server._module.named_parameters())


def assert_merged(server: Served, model: Any) -> None:
    """Check that a server has the weights that the learner merges, bit for bit on one machine."""
    live = weights_of(server)
    for name, tensor in merged_weights(model):
        assert torch.equal(live[name], tensor), name


@pytest.mark.parametrize("way", TRANSPORTS)
def test_servers_get_the_base_never_and_the_adapters_every_time(way: str, tmp_path: Path) -> None:
    model, transport = adapted(llama()), TRANSPORTS[way](tmp_path)
    with serving(llama()) as one, serving(llama()) as other:
        policy = ServedPolicy([one.http.url, other.http.url], transport=transport, limits=QUICK)
        loads = [link.ask for link in policy._fleet.links]
        paths: list[str] = []
        for link, sound in zip(policy._fleet.links, loads, strict=True):

            async def noting(method: str, path: str, *rest: Any, sound: Any = sound, **named: Any) -> object:
                paths.append(path)
                return await sound(method, path, *rest, **named)

            link.ask = noting  # type: ignore[method-assign]  # of this link
        try:
            for version in (1, 2, 3):
                train_adapters(model, seed=version)
                policy.update_weights(merged_weights(model), version)
                for server in (one, other):
                    assert_merged(server, model)
            # the servers were started with the base, so only adapters were loaded: once for each server and version
            assert paths.count("/update_weights") == 6
            found = ask(policy, [request((5, 6, 7))])[0]
            assert found.policy_version == 3
        finally:
            policy.close()


def test_servers_that_need_the_base_and_servers_that_have_it_are_two_groups_until_all_have_it() -> None:
    model, other, transport = adapted(llama()), llama(), GroupTransport("gloo", device=CPU, timeout_s=20)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    with serving(llama()) as one, serving(other) as two, serving(llama()) as three:
        servers, sizes = (one, two, three), list[list[int]]()
        policy = ServedPolicy([server.http.url for server in servers], transport=transport, limits=QUICK)
        try:
            for version in (1, 2):
                train_adapters(model, seed=version)
                policy.update_weights(merged_weights(model), version)
                sizes.append(sorted(len(group.servers) for group in transport.groups))
                for server in servers:
                    assert_merged(server, model)
        finally:
            policy.close()
    assert sizes == [[1, 2], [3]]


def test_an_update_moves_less_than_a_twentieth_of_the_bytes(tmp_path: Path) -> None:
    model, transport = adapted(llama()), FileTransport(tmp_path)
    sizes = counted(transport)
    with serving(llama()) as server:
        policy = ServedPolicy([server.http.url], transport=transport, limits=QUICK)
        try:
            for version in (1, 2):
                policy.update_weights(merged_weights(model), version)
        finally:
            policy.close()
    whole = size(llama().named_parameters())
    assert sizes[0] == whole
    # three layers, two weights each: rank 1 times (32 + 32) and (32 + 16) numbers of 4 bytes
    assert sizes[1:] == [3 * (64 + 48) * 4] * 2
    assert sizes[1] < whole / 20
    on_disk = sum(path.stat().st_size for path in (tmp_path / "version-00000002").iterdir())
    assert on_disk < 5 * sizes[1]  # with names and digests


def test_no_rounding_accumulates_over_updates(tmp_path: Path) -> None:
    model, first = adapted(llama().bfloat16()), adapted(llama().bfloat16())
    train_adapters(first, seed=99)
    with serving(llama().bfloat16()) as server:
        policy = ServedPolicy([server.http.url], transport=FileTransport(tmp_path), limits=QUICK)
        try:
            for version in range(1, 8):
                train_adapters(model, seed=version if version < 7 else 99)
                policy.update_weights(merged_weights(model), version)
            assert_merged(server, first)
        finally:
            policy.close()


@pytest.mark.parametrize("way", TRANSPORTS)
def test_a_server_with_other_weights_gets_the_base_first(way: str, tmp_path: Path) -> None:
    model, other = adapted(llama()), llama()
    with torch.no_grad():
        other.model.norm.weight.mul_(3.0)
    train_adapters(model, seed=1)
    with serving(other) as server:
        policy = ServedPolicy([server.http.url], transport=TRANSPORTS[way](tmp_path), limits=QUICK)
        try:
            policy.update_weights(merged_weights(model), 1)
            assert_merged(server, model)
            # all weights replace the base and its adapters, and adapters come back after that
            policy.update_weights(changed(llama(), 2.0), 2)
            assert compute_digests(weights_of(server).items()) == compute_digests(changed(llama(), 2.0))
            train_adapters(model, seed=3)
            policy.update_weights(merged_weights(model), 3)
            assert_merged(server, model)
        finally:
            policy.close()


def test_a_server_whose_client_died_between_base_and_adapters_is_refused(tmp_path: Path) -> None:
    model, other = adapted(llama()), llama()
    with torch.no_grad():
        other.model.norm.weight.mul_(3.0)
    train_adapters(model, seed=1)
    with serving(other) as server:
        policy = ServedPolicy([server.http.url], transport=FileTransport(tmp_path / "one"), limits=QUICK)
        sound, starts = policy._fleet.links[0].ask, list[str]()

        async def dying(method: str, path: str, *rest: Any, **named: Any) -> object:
            starts.append(path)
            if starts.count("/start_weight_update") == 2:
                raise ConnectionFailed("the client died")
            return await sound(method, path, *rest, **named)

        policy._fleet.links[0].ask = dying  # type: ignore[method-assign]  # of this link
        with pytest.raises(PolicyFailure, match="the client died"):
            policy.update_weights(merged_weights(model), 5)
        policy.close()
        told = (
            "server must have finished its last weight update, got a base whose adapters are missing .*start it again"
        )
        with pytest.raises(InvalidInput, match=told):
            ServedPolicy([server.http.url], transport=FileTransport(tmp_path / "two"), limits=QUICK)


def test_a_server_that_returns_gets_base_and_newest_adapters(tmp_path: Path) -> None:
    model, limits = adapted(llama()), replace(QUICK, watch_s=1000)
    with serving(llama()) as server:
        policy = ServedPolicy([server.http.url], transport=FileTransport(tmp_path), limits=limits)
        try:
            train_adapters(model, seed=1)
            policy.update_weights(merged_weights(model), 4)
            link = policy._fleet.links[0]
            policy._fleet.fail(link, link.state.DOWN, "gone")
            server._instance = "another"  # as after another start, with weights that are not the base
            server.weights.base = AdaptedBase()
            server._policy.set_version(0)
            policy._loop.run(policy._fleet.look_at(link))
            assert (link.state, link.version) == ("up", 4)
            assert_merged(server, model)
        finally:
            policy.close()


def test_a_server_that_begins_with_stored_adapters_has_base_and_adapters(tmp_path: Path) -> None:
    model, transport = adapted(load("tiny").model), FileTransport(tmp_path)
    train_adapters(model, seed=1)
    weights = AdaptedWeights(model)
    transport.publish(weights.adapters(), 7, base=transport.publish_base(weights.base(), 7))
    stored = StoredWeights.read(tmp_path / "version-00000007")
    assert stored.base == tmp_path / "base" / "version-00000007"
    server = load_server(ServedModel(model="tiny", dtype="float32", device="cpu", weights=str(tmp_path)))
    assert server._policy.version == 7
    live = dict(server._module.named_parameters())
    assert all(torch.equal(live[name], tensor) for name, tensor in merged_weights(model))
    assert server.weights._compute_digests() == compute_digests([*weights.base(), *weights.adapters()])


def test_weights_that_are_not_base_and_adapters_show_in_the_digests() -> None:
    model, served = adapted(llama()), llama()
    train_adapters(model, seed=1)
    base, own = AdaptedBase(), dict(served.named_parameters())
    changes = read_changes(AdaptedWeights(model).adapters(), {k: v.shape for k, v in own.items()}, where="test")
    base.keep((name, own[name]) for name in base.missing(changes))
    base.change(changes)
    name = "model.layers.1.self_attn.q_proj.weight"
    expected = compute_digests([*llama().named_parameters(), *AdaptedWeights(model).adapters()])
    lost = base.compute_digests(served.named_parameters())
    assert {key for key, value in lost.items() if value != expected[key]} == set(changes)
    served.load_state_dict(dict(merged_weights(model)))
    assert base.compute_digests(served.named_parameters()) == expected
    with torch.no_grad():
        own[name][0, 0] += 1
    differing = base.compute_digests(served.named_parameters())
    assert {key for key, value in differing.items() if value != expected[key]} == {name}


# ---- bad input ------------------------------------------------------------------------------------------------------

NAME = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    "error, matrices, told",
    [
        (InvalidInput, {NAME: (32, 32)}, "adapters must be matrices named lora_A or lora_B, got model"),
        (UnknownName, {"model.layer.lora_A": (1, 32)}, "weight"),
        (InvalidInput, {f"{NAME}.lora_A": (1, 32)}, r"must be two matrices whose product has shape \[32, 32\], got"),
        (InvalidInput, {f"{NAME}.lora_A": (1, 32), f"{NAME}.lora_B": (32, 2)}, r"got {'lora_A': \[1, 32\], 'lora_B'"),
        (InvalidInput, {f"{NAME}.lora_A": (1, 31), f"{NAME}.lora_B": (32, 1)}, r"product has shape \[32, 32\]"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(
    error: type[Exception], matrices: dict[str, tuple[int, ...]], told: str
) -> None:
    shapes = {name: parameter.shape for name, parameter in llama().named_parameters()}
    with pytest.raises(error, match=told):
        read_changes([(name, torch.zeros(shape)) for name, shape in matrices.items()], shapes, where="test")


def test_adapters_that_do_not_fit_leave_the_server_as_it_was(tmp_path: Path) -> None:
    model = adapted(llama(vocab_size=50, hidden_size=16))
    with serving(llama()) as server:
        before = compute_digests(weights_of(server).items())
        policy = ServedPolicy([server.http.url], transport=FileTransport(tmp_path), limits=QUICK)
        try:
            with pytest.raises(PolicyFailure, match="no policy server has the weights of version 1"):
                policy.update_weights(merged_weights(model), 1)
        finally:
            policy.close()
        assert server.weights.broken is None
        assert compute_digests(weights_of(server).items()) == before
