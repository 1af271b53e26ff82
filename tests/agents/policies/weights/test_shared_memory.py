"""New weights in memory that the run and its servers share: a memory file between CPUs, CUDA IPC on one GPU."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from envgym.agents.policies.serving.client import ServedPolicy
from envgym.agents.policies.weights.shared_memory import SharedWeights, read_shared
from envgym.agents.policies.weights.transport import SharedTransport
from envgym.agents.policies.weights.weight_store import compute_digests, digest
from envgym.errors import InvalidInput, PolicyFailure
from tests.agents.policies.serving.running import changed, serving
from tests.agents.policies.serving.test_client import QUICK, ask
from tests.agents.policies.small_models import llama, request
from tests.support.sources import ROOT

CPU = torch.device("cpu")
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available")],
    ),
]
READER = """
import json, sys
from envgym.agents.policies.weights.shared_memory import read_shared
from envgym.agents.policies.weights.weight_store import digest
described = json.loads(sys.stdin.read())
for _ in range(2):
    print(json.dumps({name: [str(tensor.dtype), list(tensor.shape), digest(tensor)]
                      for name, tensor in read_shared(described)}))
"""


def some_weights() -> dict[str, torch.Tensor]:
    return {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "c": torch.tensor(4),
        "d": torch.zeros(0, 3),
        "e": torch.randn(4, 10).T,
    }


def memory_files() -> int:
    """Return how many memory files this process holds or maps."""
    open_files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return sum("envgym-weights" in line for line in [*open_files, *mapped])


@pytest.mark.parametrize("device", DEVICES)
def test_another_process_reads_what_is_held_bit_for_bit_as_often_as_it_likes(device: str) -> None:
    weights = some_weights()
    shared = SharedWeights(weights.items(), torch.device(device))
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(shared.describe()),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {name: [str(tensor.dtype), list(tensor.shape), digest(tensor)] for name, tensor in weights.items()}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [expected] * 2
    shared.close()


def test_reader_that_writes_changes_its_own_copy_only() -> None:
    shared = SharedWeights([("a", torch.arange(4.0))], CPU)
    for _, tensor in read_shared(shared.describe()):
        tensor.zero_()
    assert dict(shared.tensors())["a"].tolist() == [0, 1, 2, 3]


def test_two_servers_sample_from_what_is_held_and_old_versions_are_freed() -> None:
    model, transport, before = llama(), SharedTransport(CPU), memory_files()
    limits = replace(QUICK, watch_s=1000)  # two looks at one server at a time would load its weights twice at a time
    with serving(llama()) as one, serving(llama()) as other:
        policy = ServedPolicy([one.http.url, other.http.url], transport=transport, limits=limits)
        try:
            for version in (1, 2, 3):
                policy.update_weights(changed(model, 1 + version / 8), version)
                assert len(transport._versions) == 1
            for server in (one, other):
                assert compute_digests(server._module.named_parameters()) == compute_digests(changed(model, 1.375))
            assert ask(policy, [request((5, 6, 7))])[0].policy_version == 3
            # a server that returns is brought the version that is held
            link = policy._fleet.links[0]
            policy._fleet.fail(link, link.state.DOWN, "gone")
            one._instance = "another"
            one._policy.set_version(0)
            policy._loop.run(policy._fleet.look_at(link))
            assert (link.state, one._policy.version) == ("up", 3)
        finally:
            policy.close()
    assert memory_files() == before


def test_a_base_can_be_read_until_no_server_takes_it() -> None:
    transport, before = SharedTransport(CPU), memory_files()
    old = transport.publish_base([("a", torch.arange(4.0))], 1)
    transport.publish_base([("a", torch.arange(5.0))], 2)
    transport.finish(taking=[1])
    described = old.update_info["shared"]
    assert isinstance(described, dict)
    assert [tensor.tolist() for _, tensor in read_shared(described)] == [[0, 1, 2, 3]]
    transport.finish()
    with pytest.raises(InvalidInput, match="new weights must lie in memory that this process sees"):
        list(read_shared(described))
    transport.close()
    assert memory_files() == before


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"file": 999_999},
        {"process": 2**22 + 1},
        {"size": 1 << 40},
        {"entries": [["a"]]},
        {"entries": None},
        {"handle": [], "gpu": "GPU-none"},
        {"entries": [["a", [1 << 50], "float32", 0]]},
        {"entries": [["a", [1], "system", 0]]},
    ],
)
def test_memory_that_is_not_seen_is_told(change: dict[str, object]) -> None:
    shared = SharedWeights([("a", torch.arange(4.0))], CPU)
    with pytest.raises(
        InvalidInput, match=r"new weights must lie in memory that this process sees, got \w+: .*; run b"
    ):
        list(read_shared({**shared.describe(), **change}))


def test_too_little_memory_is_told() -> None:
    size = 1 << 45
    tensor = torch.empty(1).expand(size)
    with pytest.raises(
        InvalidInput, match=r"memory must have \d+\.\d GB to hold the weights once more, got \d+\.\d GB .*use the"
    ):
        SharedWeights([("a", tensor)], CPU)


def test_a_server_that_cannot_read_is_broken_and_says_why() -> None:
    transport = SharedTransport(CPU)
    with serving(llama()) as server:
        policy = ServedPolicy([server.http.url], transport=transport, limits=QUICK)
        try:
            publish = transport.publish
            transport.publish = lambda *given: publish(*given)._replace(  # type: ignore[method-assign]  # of this one
                update_info={"shared": {"entries": [], "size": 1, "process": 2**22 + 1, "file": 3}}
            )
            with pytest.raises(PolicyFailure, match="new weights must lie in memory that this process sees"):
                policy.update_weights(changed(llama(), 2.0), 1)
        finally:
            policy.close()
