"""The transformers twin of vLLM's server: the same routes around the continuous-batching transformers policy.

It serves one model, of whose weights nobody else holds a reference. While it is paused, requests stand still between
two tokens; an update goes through start, update and finish, and one that fails leaves the server broken, as some layers
may be new: it then answers nothing any more and must be started again.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs

import torch
from torch import Tensor, nn

from envgym.agents.policies.serving.collective import GroupAddress, WeightGroup, join, transports_of
from envgym.agents.policies.serving.http import AsyncHttpServer, HttpRequest, ServerLimits, ServerReply
from envgym.agents.policies.serving.identity import max_positions, model_digest
from envgym.agents.policies.serving.weight_store import StoredWeights, compute_digests
from envgym.agents.policies.serving.wire import (
    GENERATE,
    INFO,
    PROTOCOL,
    generation_to_json,
    read_request,
)
from envgym.agents.policies.transformers import TransformersPolicy, copy_weights, pair_weights
from envgym.core.json_types import JsonObject, parse_json
from envgym.errors import InvalidInput, PolicyFailure

T = TypeVar("T")
_MAX_PARTS = 4_000_000
"""Values in one body."""
_ALL = "send every weight; merged_weights(model) does, with adapters merged"


class _Refused(Exception):
    """The request cannot be answered in the state that the server is in."""


class PolicyServer:
    """Answers the routes for one policy; `http` is the server to start and close."""

    def __init__(
        self,
        policy: TransformersPolicy,
        module: nn.Module,
        *,
        model: str,
        tokenizer_digest: str | None = None,
        token: str | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            policy: samples; it serves continuously.
            module: whose weights it samples from.
            model: the name that it is served by.
            tokenizer_digest: of `tokenizer_digest`; None: the model has no tokenizer.
            token: that requests must carry; None: no request needs one.
            limits: of the HTTP server.
        """
        self._policy, self._module, self._model = policy, module, model
        self._instance, self._tokenizer_digest = uuid.uuid4().hex, tokenizer_digest
        self._hold: ExitStack | None = None
        self._name_weights: Callable[[int], None] = policy.set_version
        self._is_updating = False
        self._broken: str | None = None
        self._group: WeightGroup | None = None
        """With the run that brings weights, where they come over one."""
        self._sampling: set[asyncio.Task[Any]] = set()
        """Requests that sample."""
        self._changes = asyncio.Lock()
        self._get: Mapping[str, Callable[[], Awaitable[ServerReply]]] = {
            "/health": self._health,
            "/metrics": self._metrics,
            "/weight_info": self._weight_info,
            "/is_paused": self._is_paused,
            INFO: self._info,
        }
        self._post: Mapping[str, Callable[[JsonObject, str], Awaitable[JsonObject]]] = {
            GENERATE: self._generate,
            "/pause": self._pause,
            "/resume": self._resume,
            "/init_weight_transfer_engine": self._join_group,
            "/start_weight_update": self._start_update,
            "/update_weights": self._update,
            "/finish_weight_update": self._finish_update,
            "/update_weight_version": self._rename,
            "/weight_checker": self._check_weights,
        }
        self.http = AsyncHttpServer(self._answer, token=token, limits=limits)

    async def close(self) -> None:
        """Stop serving, and let go of the policy, which stays open."""
        await self.http.close()
        if self._hold is not None:
            self._hold.close()

    async def _answer(self, request: HttpRequest) -> ServerReply:
        try:
            if request.method == "GET" and request.path in self._get:
                return await self._get[request.path]()
            answer = self._post.get(request.path)
            if request.method != "POST" or answer is None:
                got = f"{request.method} {request.path}"
                return ServerReply.refuse(HTTPStatus.NOT_FOUND, f"path must be one of the routes, got {got}.")
            self._check_sound()
            return ServerReply.of(await answer(_read_body(request), request.query))
        except _Refused as error:
            return ServerReply.refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except PolicyFailure as error:
            return ServerReply.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except InvalidInput as error:
            return ServerReply.refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _check_sound(self) -> None:
        if self._broken is not None:
            raise _Refused(f"the server is broken, as {self._broken}; start it again.")

    # ---- sampling ------------------------------------------------------------------------------------------------

    async def _generate(self, body: JsonObject, query: str) -> JsonObject:
        if body.get("model") not in {None, self._model}:
            do = "send requests for the model that is served"
            raise InvalidInput.of("model", f"be {self._model}", body["model"], where=GENERATE, do=do)
        params = body.get("sampling_params")
        request = read_request(body)
        if isinstance(params, dict) and params.get("prompt_logprobs") is not None:
            return await self._unless_broken(self._score(request.token_ids))
        return generation_to_json(request, await self._unless_broken(self._policy.generate(request)), model=self._model)

    async def _unless_broken(self, sampling: Awaitable[T]) -> T:
        """Sample, and end when a weight update fails: nothing is sampled any more."""
        task = asyncio.current_task()
        assert task is not None, "a request is a task"
        self._sampling.add(task)
        try:
            return await sampling
        except asyncio.CancelledError:
            if self._broken is None:
                raise
            task.uncancel()
            self._check_sound()
            raise
        finally:
            self._sampling.discard(task)

    async def _score(self, row: tuple[int, ...]) -> JsonObject:
        logprobs = (await self._policy.compute_logprobs([row]))[0]
        entries: list[Any] = [
            {str(token): {"logprob": value}} for token, value in zip(row[1:], logprobs[1:], strict=True)
        ]
        return {"model": self._model, "choices": [], "prompt_logprobs": [None, *entries]}

    # ---- weights -------------------------------------------------------------------------------------------------

    async def _pause(self, body: JsonObject, query: str) -> JsonObject:
        mode = parse_qs(query).get("mode", ["keep"])[0]
        if mode != "keep":
            raise InvalidInput.of("mode", "be keep for this server", mode, where="/pause", do="send /pause?mode=keep")
        async with self._changes:
            if self._hold is None:
                hold = ExitStack()
                self._name_weights = await asyncio.to_thread(hold.enter_context, self._policy.hold())
                self._hold = hold
        return {"status": "paused"}

    async def _resume(self, body: JsonObject, query: str) -> JsonObject:
        async with self._changes:
            if self._is_updating:
                raise _Refused("the server is in the middle of a weight update; send /finish_weight_update first.")
            if self._hold is not None:
                self._hold.close()
                self._hold = None
        return {"status": "resumed"}

    async def _join_group(self, body: JsonObject, query: str) -> JsonObject:
        """Meet a run in a process group, over which its weights will come."""
        fields: Any = body.get("init_info")
        try:
            address = GroupAddress(**fields)
        except TypeError as error:
            do = "send host, port, backend and timeout_s"
            raise InvalidInput.of(
                "init_info", "say where the group meets", str(error), where="/init_weight_transfer_engine", do=do
            ) from error
        async with self._changes:
            try:
                self._group = await asyncio.to_thread(join, address, self._device)
            except (OSError, RuntimeError) as error:
                raise PolicyFailure(f"the server found nobody in the group: {error}".splitlines()[0]) from error
        return {"message": "Weight transfer initialized"}

    async def _start_update(self, body: JsonObject, query: str) -> JsonObject:
        async with self._changes:
            if self._hold is None or self._is_updating:
                do = "send /finish_weight_update" if self._is_updating else "send /pause?mode=keep"
                raise _Refused(f"the server must be paused and not be updated already; {do} first.")
            self._is_updating = True
        return {"message": "Weight update started"}

    async def _update(self, body: JsonObject, query: str) -> JsonObject:
        info = body.get("update_info")
        info = info if isinstance(info, dict) else {}
        directory, group = info.get("directory"), self._group
        if info.get("from_group") and group is not None:
            return await self._change(lambda: self._receive(group), "/update_weights")
        if not isinstance(directory, str):
            do = "send {update_info: {directory: ...}}, or /init_weight_transfer_engine before {from_group: true}"
            raise InvalidInput.of("update_info", "name a directory", info, where="/update_weights", do=do)
        return await self._change(lambda: self._load(Path(directory)), "/update_weights")

    async def _finish_update(self, body: JsonObject, query: str) -> JsonObject:
        version = _version(body.get("weight_version"), "/finish_weight_update")
        reply = await self._change(lambda: self._name_weights(version), "/finish_weight_update")
        self._is_updating = False
        return reply

    async def _change(self, change: Callable[[], None], where: str) -> JsonObject:
        """Do a part of an update; where it fails, the server is broken."""
        async with self._changes:
            if not self._is_updating:
                raise _Refused(f"the server is not being updated; send /start_weight_update before {where}.")
            try:
                await asyncio.to_thread(change)
            except Exception as error:  # whatever it was: some weights may be new
                self._broken = f"a weight update failed: {type(error).__name__}: {error}".rstrip(".: ")
                for task in self._sampling:
                    task.cancel()
                raise PolicyFailure(f"{self._broken}.") from error
        return {"message": "Weights updated"}

    def _load(self, directory: Path) -> None:
        load_weights(self._module, StoredWeights.read(directory))

    def _receive(self, group: WeightGroup) -> None:
        receive_weights(self._module, group.receive())

    @property
    def _device(self) -> torch.device:
        return next(self._module.parameters()).device

    async def _rename(self, body: JsonObject, query: str) -> JsonObject:
        version = _version(body.get("new_version"), "/update_weight_version")
        async with self._changes:
            await asyncio.to_thread(self._policy.set_version if self._hold is None else self._name_weights, version)
        return {"success": True, "new_version": str(version)}

    async def _check_weights(self, body: JsonObject, query: str) -> JsonObject:
        if body.get("action") != "checksum":
            do = "send {action: checksum}"
            raise InvalidInput.of("action", "be checksum", body.get("action"), where="/weight_checker", do=do)
        async with self._changes:
            found = await asyncio.to_thread(self._compute_digests)
        return {"checksums": dict(found)}

    def _compute_digests(self) -> dict[str, str]:
        with nullcontext() if self._hold is not None else self._policy.hold():
            return compute_digests(self._module.named_parameters())

    # ---- state ---------------------------------------------------------------------------------------------------

    async def _health(self) -> ServerReply:
        if self._broken is not None:
            return ServerReply.refuse(HTTPStatus.SERVICE_UNAVAILABLE, self._broken)
        return ServerReply(HTTPStatus.OK, b"", "text/plain")

    async def _weight_info(self) -> ServerReply:
        return ServerReply.of({"weight_version": str(self._policy.version)})

    async def _is_paused(self) -> ServerReply:
        return ServerReply.of({"is_paused": self._hold is not None})

    async def _metrics(self) -> ServerReply:
        """Name what is counted as vLLM does; this engine never preempts a sequence."""
        return ServerReply(HTTPStatus.OK, b"vllm:num_preemptions_total 0\n", "text/plain")

    async def _info(self) -> ServerReply:
        return ServerReply.of(
            {
                "engine": "transformers",
                "model": self._model,
                "protocol": PROTOCOL,
                "weight_version": str(self._policy.version),
                "max_context": max_positions(self._module),
                "model_digest": model_digest(self._module),
                "tokenizer_digest": self._tokenizer_digest,
                "dtype": str(next(self._module.parameters()).dtype).removeprefix("torch."),
                "instance": self._instance,
                "transports": list(transports_of(self._device)),
            }
        )


def load_weights(module: nn.Module, stored: StoredWeights) -> None:
    """Copy a stored version into a module.

    Raises: UnknownName, InvalidInput: weights are missing, or of other shapes or types; nothing was copied.
    """
    pairs: list[tuple[Tensor, Tensor]] = pair_weights(module, stored.tensors())
    own = {name for name, _ in module.named_parameters()}
    if missing := sorted(own - stored.digests.keys()):
        must, got = f"hold all {len(own)}", f"{len(own) - len(missing)}, without {missing[0]}"
        raise InvalidInput.of("new weights", must, got, where=str(stored.directory), do=_ALL)
    _check_types(pairs, str(stored.directory))
    copy_weights(pairs)


def receive_weights(module: nn.Module, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy weights into a module as they come.

    Raises: UnknownName, InvalidInput: weights are missing, or of other shapes or types; some were copied.
    """
    left = {name for name, _ in module.named_parameters()}
    for name, tensor in named_tensors:
        left.discard(name)
        pairs = pair_weights(module, [(name, tensor)])
        _check_types(pairs, name)
        copy_weights(pairs)
    InvalidInput.unless(
        not left, "new weights", "be all", f"some without {min(left, default='')}", where="group", do=_ALL
    )


def _check_types(pairs: Iterable[tuple[Tensor, Tensor]], where: str) -> None:
    """Compare types of weights. Raises: InvalidInput: one is not the server's."""
    for target, tensor in pairs:
        do = "serve the model in the type that it is trained in (--dtype)"
        must = f"be of the server's {target.dtype}"
        InvalidInput.unless(target.dtype == tensor.dtype, "new weights", must, tensor.dtype, where=where, do=do)


def _read_body(request: HttpRequest) -> JsonObject:
    """Decode a body; none is an empty one. Raises: InvalidInput: it is no JSON object."""
    try:
        value = parse_json(request.body, _MAX_PARTS) if request.body else {}
    except ValueError as error:
        raise InvalidInput.of("body", "be JSON", str(error), where=request.path, do="correct it") from error
    if not isinstance(value, dict):
        raise InvalidInput.of("body", "be a JSON object", value, where=request.path, do="correct it")
    return value


def _version(value: object, where: str) -> int:
    """Read a version. Raises: InvalidInput: it is no number."""
    text = str(value)
    if not text.isdecimal():
        raise InvalidInput.of("weight version", "be a whole number", value, where=where, do="send e.g. 12")
    return int(text)
