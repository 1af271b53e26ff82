"""A bad request is answered with a sentence, and others go on; weights that do not fit leave the old ones in place."""

import asyncio
import http.client
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.serving.frames import FRAMES, RequestKey, read_tokens, write_request
from envgym.agents.policies.weights.shared_memory import SharedWeights
from envgym.agents.policies.weights.weight_store import WeightStore
from envgym.agents.protocols import Generation, Sampling
from envgym.errors import InvalidInput
from tests.agents.policies.serving.running import Served, changed, serving
from tests.agents.policies.small_models import llama, request

GENERATE = "/inference/v1/generate"
VOCABULARY = 50


def post(served: Served, path: str, data: object, *, timeout_s: float = 60.0) -> tuple[int, Any]:
    with closing(
        http.client.HTTPConnection("127.0.0.1", int(served.http.url.rpartition(":")[2]), timeout=timeout_s)
    ) as c:
        c.request("POST", path, body=json.dumps(data).encode())
        response = c.getresponse()
        return response.status, json.loads(response.read() or b"{}")


def sampled(served: Served) -> list[int]:
    """Return what the server samples greedily: it tells its weights."""
    params = {"max_tokens": 4, "temperature": 0}
    status, reply = post(served, GENERATE, {"token_ids": [1, 2, 3], "sampling_params": params})
    assert status == HTTPStatus.OK, reply
    tokens: list[int] = reply["choices"][0]["token_ids"]
    return tokens


BAD: list[dict[str, Any]] = [
    {"token_ids": [1, VOCABULARY]},
    {"token_ids": [-1]},
    {"token_ids": [2**63]},
    {"token_ids": [2**63 - 1, 1]},
    {"token_ids": [-(2**63) - 1]},
    {"token_ids": [10**30]},
    {"token_ids": [1.0]},
    {"token_ids": ["1"]},
    {"token_ids": [True]},
    {"token_ids": [None]},
    {"token_ids": [[1]]},
    {"token_ids": "123"},
    {"token_ids": {}},
    {"token_ids": []},
    {},
    {"token_ids": [1], "sampling_params": []},
    *(
        {"token_ids": [1], "sampling_params": {name: value}}
        for name, values in {
            "temperature": (-1, float("nan"), float("inf"), "hot", None, [], 10**400),
            "top_p": (0, 2, float("nan"), "x", []),
            "top_k": ("x", 2**63, 10**30, float("inf")),
            "max_tokens": (0, -1, "x", float("nan")),
            "seed": (-1, 2**128, "x", [1]),
            "stop_token_ids": ([2**63], ["x"], 1, [None], [-(10**30)]),
            "logprobs": (-1, VOCABULARY + 1, "x"),
            "n": (2,),
        }.items()
        for value in values
    ),
    {"token_ids": [1, VOCABULARY], "sampling_params": {"prompt_logprobs": 0}},
    {"token_ids": [1] * 100_000, "sampling_params": {"prompt_logprobs": 0}},
    {"token_ids": [1], "model": ["other"]},
]


def test_a_bad_request_is_refused_and_leaves_its_neighbours_alone(caplog: pytest.LogCaptureFixture) -> None:
    with serving(llama(vocab_size=VOCABULARY)) as served:
        good = sampled(served)
        neighbours: list[tuple[int, Any]] = []
        data = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 20}}
        is_over = threading.Event()

        def keep_asking() -> None:
            while not is_over.is_set():
                neighbours.append(post(served, GENERATE, data))

        thread = threading.Thread(target=keep_asking)
        thread.start()
        for body in BAD:
            status, reply = post(served, GENERATE, body)
            assert status == HTTPStatus.BAD_REQUEST, (body, reply)
            assert " must " in reply["error"]["message"]
        is_over.set()
        thread.join()
        assert {status for status, _ in neighbours} == {HTTPStatus.OK}
        assert sampled(served) == good
    assert "Traceback" not in caplog.text


def frame(token_ids: tuple[int, ...] = (1, 2, 3), *, model: str = "small", number: int = 1, **options: int) -> bytes:
    named = {"limit": 4, "continues": 0, "num_kept": 0, **options}
    item = replace(request(token_ids), sampling=Sampling(temperature=0))
    return write_request(item, RequestKey(bytes(16), number), model=model, salt="", **named)


def post_frame(served: Served, body: bytes) -> tuple[int, bytes]:
    address = ("127.0.0.1", int(served.http.url.rpartition(":")[2]))
    with closing(http.client.HTTPConnection(*address, timeout=60)) as connection:
        connection.request("POST", FRAMES, body=body)
        response = connection.getresponse()
        return response.status, response.read()


def test_a_bad_request_in_arrays_is_refused_in_one_sentence() -> None:
    bad = [b"", b"x" * 100, frame()[:-1], frame() + b"x", frame(()), frame((1, VOCABULARY)), frame((-1,))]
    bad += [frame(model="other"), frame(limit=0), frame(limit=-1)]
    with serving(llama(vocab_size=VOCABULARY)) as served:
        good = post_frame(served, frame())
        assert good[0] == HTTPStatus.OK
        for body in bad:
            status, reply = post_frame(served, body)
            assert status == HTTPStatus.BAD_REQUEST, reply
            message = json.loads(reply)["error"]["message"]
            assert " must " in message
            assert "\n" not in message
        status, reply = post_frame(served, frame((4,), number=2, continues=1, num_kept=8))
        assert (status, b"kept tokens must be at most the 7 tokens" in reply) == (HTTPStatus.BAD_REQUEST, True)
        assert post_frame(served, frame((4,), number=2, continues=9, num_kept=3))[0] == HTTPStatus.GONE
        assert post_frame(served, frame((4,), number=2, continues=1, num_kept=7))[0] == HTTPStatus.OK
        assert read_tokens(served._contexts._contexts[RequestKey(bytes(16), 2)])[:3] == (1, 2, 3)
        assert len(served._contexts._contexts) == 2, "nothing is held of what was refused"
        assert post_frame(served, frame())[1][20:36] == good[1][20:36], "the same four tokens"


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**63])
def test_a_policy_in_this_process_refuses_a_token_that_the_model_lacks(token: int) -> None:
    policy = TransformersPolicy(llama(vocab_size=VOCABULARY), deterministic=False)

    async def ask() -> list[Generation | BaseException]:
        asked = [policy.generate(request((1, 2, 3))), policy.generate(request((1, token)))]
        return await asyncio.gather(*asked, return_exceptions=True)

    good, bad = asyncio.run(ask())
    assert isinstance(good, Generation)
    assert isinstance(bad, InvalidInput)
    with pytest.raises(InvalidInput, match=r"token ids must be from 0 to 49"):
        asyncio.run(policy.compute_logprobs([(1, token)]))


# ---- weights ---------------------------------------------------------------------------------------------------------


def stored(root: Path) -> Path:
    """Return the directory of a good version."""
    return WeightStore(root).write(changed(llama(vocab_size=VOCABULARY), 1.5), 7).directory


def not_there(root: Path) -> dict[str, object]:
    return {"directory": str(root / "nowhere")}


def no_marker(root: Path) -> dict[str, object]:
    (stored(root) / "STABLE").unlink()
    return {"directory": str(root / "version-00000007")}


def other_model(root: Path) -> dict[str, object]:
    return {"directory": str(WeightStore(root).write(changed(llama(vocab_size=60), 1.5), 7).directory)}


def one_missing(root: Path) -> dict[str, object]:
    weights = changed(llama(vocab_size=VOCABULARY), 1.5)
    return {"directory": str(WeightStore(root).write(weights[:-1], 7).directory)}


def other_type(root: Path) -> dict[str, object]:
    weights = [(name, tensor.to(torch.bfloat16)) for name, tensor in changed(llama(vocab_size=VOCABULARY), 1.5)]
    return {"directory": str(WeightStore(root).write(weights, 7).directory)}


def pickled(root: Path) -> dict[str, object]:
    for path in stored(root).glob("*.safetensors"):
        path.write_bytes(pickle.dumps({"a": 1}))
    return {"directory": str(root / "version-00000007")}


def cut_off(root: Path) -> dict[str, object]:
    for path in stored(root).glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-100])
    return {"directory": str(root / "version-00000007")}


def a_fifo(root: Path) -> dict[str, object]:
    os.mkfifo(stored(root) / "weights-00002.safetensors")
    return {"directory": str(root / "version-00000007")}


def odd_manifest(root: Path) -> dict[str, object]:
    (stored(root) / "weights.json").write_text('{"version": 1, "digests": [1]}', encoding="utf-8")
    return {"directory": str(root / "version-00000007")}


def manifest_fifo(root: Path) -> dict[str, object]:
    (stored(root) / "weights.json").unlink()
    os.mkfifo(root / "version-00000007" / "weights.json")
    return {"directory": str(root / "version-00000007")}


def no_weights(root: Path) -> dict[str, object]:
    return {"colour": "red"}


def odd_memory(root: Path) -> dict[str, object]:
    return {"shared": {"entries": [["x", [-1], "float32", 0]], "size": 8, "process": 1, "file": 0}}


def memory_of_another_model(root: Path) -> dict[str, object]:
    memory = SharedWeights(changed(llama(vocab_size=60), 1.5), torch.device("cpu"))
    kept.append(memory)
    return {"shared": memory.describe()}


kept: list[SharedWeights] = []
BAD_UPDATES = [not_there, no_marker, other_model, one_missing, other_type, pickled, cut_off, a_fifo, odd_manifest]
BAD_UPDATES += [manifest_fifo, no_weights, odd_memory, memory_of_another_model]


@pytest.mark.parametrize("make", BAD_UPDATES)
def test_weights_that_do_not_fit_leave_the_old_ones(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    info = make(tmp_path / "bad")
    with serving(llama(vocab_size=VOCABULARY), version=3) as served:
        before = sampled(served)
        assert post(served, "/pause?mode=keep", {})[0] == HTTPStatus.OK
        assert post(served, "/start_weight_update", {})[0] == HTTPStatus.OK
        status, reply = post(served, "/update_weights", {"update_info": info})
        assert status == HTTPStatus.BAD_REQUEST
        assert " must " in reply["error"]["message"]
        if make is no_weights:
            post(served, "/update_weights", {"update_info": not_there(tmp_path)})
        assert sampled(served) == before  # without /resume
        assert post(served, "/finish_weight_update", {"weight_version": "4"})[0] == HTTPStatus.SERVICE_UNAVAILABLE
        good = {"update_info": {"directory": str(stored(tmp_path / "good"))}}
        steps: list[tuple[str, dict[str, Any]]] = [
            ("/pause?mode=keep", {}),
            ("/start_weight_update", {}),
            ("/update_weights", good),
        ]
        steps += [("/finish_weight_update", {"weight_version": "7"}), ("/resume", {})]
        assert [post(served, path, data)[0] for path, data in steps] == [HTTPStatus.OK] * 5
        assert sampled(served)
    assert "Traceback" not in caplog.text


RANK = {"rank": 1, "world_size": 2}


@pytest.mark.parametrize(
    "address",
    [
        None,
        [],
        {"host": "127.0.0.1"},
        {"host": 1, "port": 1, "backend": "gloo", "timeout_s": 1, **RANK},
        {"host": "127.0.0.1", "port": 10**6, "backend": "gloo", "timeout_s": 1, **RANK},
        {"host": "127.0.0.1", "port": 1, "backend": "gloo", "timeout_s": 1e9, **RANK},
        {"host": "127.0.0.1", "port": 1, "backend": "gloo", "timeout_s": float("nan"), **RANK},
        {"host": "127.0.0.1", "port": 1, "backend": "moon", "timeout_s": 1, **RANK},
        {"host": "127.0.0.1", "port": 1, "backend": "gloo", "timeout_s": 1, "more": 1, **RANK},
        {"host": "127.0.0.1", "port": 1, "backend": "gloo", "timeout_s": 1},
        {"host": "127.0.0.1", "port": 1, "backend": "gloo", "timeout_s": 1, "rank": 2, "world_size": 2},
    ],
)
def test_an_address_that_is_none_is_refused(address: object) -> None:
    with serving(llama(vocab_size=VOCABULARY)) as served:
        status, reply = post(served, "/init_weight_transfer_engine", {"init_info": address})
        assert status == HTTPStatus.BAD_REQUEST, reply
        assert sampled(served)


def test_a_wrong_group_address_does_not_keep_sampling_paused() -> None:
    address = {"host": "127.0.0.1", "port": 9, "backend": "gloo", "timeout_s": 1.0, **RANK}
    with serving(llama(vocab_size=VOCABULARY)) as served:
        post(served, "/pause?mode=keep", {})
        status, reply = post(served, "/init_weight_transfer_engine", {"init_info": address})
        assert status == HTTPStatus.INTERNAL_SERVER_ERROR
        assert "found nobody in the group" in reply["error"]["message"]
        assert sampled(served)


def test_sampling_can_be_resumed_while_a_group_is_waited_for() -> None:
    address = {"host": "127.0.0.1", "port": 9, "backend": "gloo", "timeout_s": 8.0, **RANK}
    with serving(llama(vocab_size=VOCABULARY)) as served:
        post(served, "/pause?mode=keep", {})
        data = {"init_info": address}
        joining = threading.Thread(target=post, args=(served, "/init_weight_transfer_engine", data), daemon=True)
        joining.start()
        assert post(served, "/resume", {})[0] == HTTPStatus.OK
        assert sampled(served)
        assert joining.is_alive()
        joining.join()


@pytest.mark.processes
def test_a_paused_server_ends_soon_after_an_interrupt() -> None:
    command = [sys.executable, "-m", "envgym", "policy-server", "tiny", "--engine", "transformers", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].partition(";")[0])
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(4)]
        data = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 900}}
        address = {"host": "127.0.0.1", "port": 9, "backend": "gloo", "timeout_s": 600, **RANK}
        connections[0].request("POST", "/pause?mode=keep")
        assert connections[0].getresponse().status == HTTPStatus.OK
        connections[1].request("POST", GENERATE, body=json.dumps(data))
        connections[2].request("POST", "/init_weight_transfer_engine", body=json.dumps({"init_info": address}))
        connections[3].request("GET", "/health")
        assert connections[3].getresponse().status == HTTPStatus.OK
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)  # and not the 600 s for which it may wait for the group
        assert "Traceback" not in output
        for connection in connections:
            connection.close()
