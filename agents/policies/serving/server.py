"""The transformers twin of vLLM's server: the same routes around the continuous-batching transformers policy.

It serves one model, of whose weights nobody else holds a reference. An update goes through start, update and finish.
Weights that do not fit are refused before any is put in place: the old ones go on. Only what fails later, while weights
are copied, leaves the server broken: it then answers nothing any more and must be started again.
"""

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from torch import nn

from envgym.agents.models.loading import load, load_adapter, load_tokenizer, prepare_device, resolve_model
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.serving.backend import ServedModel
from envgym.agents.policies.serving.frames import (
    FRAME_TYPE,
    FRAMES,
    ROW_FRAMES,
    read_row,
    read_tokens,
    write_answer,
    write_row_answer,
)
from envgym.agents.policies.serving.frames import read_request as read_frame
from envgym.agents.policies.serving.held import HeldContexts, UnknownContext
from envgym.agents.policies.serving.identity import max_positions, model_digest, tokenizer_digest
from envgym.agents.policies.serving.wire import GENERATE, INFO, PROTOCOL, error_reply, generation_to_json, read_request
from envgym.agents.policies.weights.adapted_base import AdaptedBase
from envgym.agents.policies.weights.channel import transports_of
from envgym.agents.policies.weights.collective import GroupAddress
from envgym.agents.policies.weights.served_weights import ServedWeights, ServerUnavailable, load_weights
from envgym.agents.policies.weights.weight_store import WeightStore
from envgym.agents.protocols import GenerateRequest
from envgym.core.json_types import JsonObject, parse_json
from envgym.errors import InvalidInput, PolicyFailure
from envgym.runtime.http.server import HttpLimits, HttpReply, HttpRequest, HttpServer
from envgym.runtime.processes.log import HEADER, Ids, about, log_event

_MAX_PARTS = 4_000_000
"""Values in one body."""
HTTP_LIMITS: Final = HttpLimits(connections=1024, body_bytes=32 << 20, idle_s=120.0)


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
        limits: HttpLimits | None = None,
    ) -> None:
        """Prepare to serve a policy that serves continuously, which samples from the weights of `module`, as `model`.

        Without `tokenizer_digest` the model has no tokenizer; without `token` no request needs one.
        """
        self._policy, self._module, self._model = policy, module, model
        self._instance, self._tokenizer_digest = uuid.uuid4().hex, tokenizer_digest
        self.weights = ServedWeights(policy, module)
        self._contexts = HeldContexts()
        self._get: Mapping[str, Callable[[], Awaitable[HttpReply]]] = {
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
        self.http = HttpServer(
            self._handle, token=token, limits=limits or HTTP_LIMITS, error_form=error_reply, cancels_abandoned=True
        )

    async def close(self) -> None:
        """Stop serving, and let go of the policy, which stays open."""
        await self.http.close()
        self.weights.close()

    async def _handle(self, request: HttpRequest) -> HttpReply:
        """Answer a request; the lines of the log that this causes have the ids that the client sent."""
        started, status = time.perf_counter(), HTTPStatus.INTERNAL_SERVER_ERROR
        with about(Ids.of_header(request.headers.get(HEADER.lower()))):
            try:
                reply = await self._answer(request)
                status = reply.status
                return reply
            finally:
                if request.method == "POST":
                    seconds = time.perf_counter() - started
                    log_event("request", path=request.path, status=status.value, seconds=seconds)

    async def _answer(self, request: HttpRequest) -> HttpReply:
        try:
            if request.method == "GET" and request.path in self._get:
                return await self._get[request.path]()
            if request.method == "POST" and request.path == FRAMES:
                self.weights.check_sound()
                return await self._generate_frame(request.body)
            if request.method == "POST" and request.path == ROW_FRAMES:
                self.weights.check_sound()
                return await self._score_frame(request.body)
            answer = self._post.get(request.path)
            if request.method != "POST" or answer is None:
                got = f"{request.method} {request.path}"
                return error_reply(HTTPStatus.NOT_FOUND, f"path must be one of the routes, got {got}.")
            self.weights.check_sound()
            return HttpReply.of_json(await answer(_read_body(request), request.query))
        except ServerUnavailable as error:
            return error_reply(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except UnknownContext as error:
            return error_reply(HTTPStatus.GONE, str(error))
        except PolicyFailure as error:
            return error_reply(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except InvalidInput as error:
            return error_reply(HTTPStatus.BAD_REQUEST, str(error))

    # ---- sampling ------------------------------------------------------------------------------------------------

    async def _generate_frame(self, body: bytes) -> HttpReply:
        framed = read_frame(body)
        self._check_model(framed.model, FRAMES)
        context = self._contexts.context(framed)
        request = GenerateRequest(token_ids=read_tokens(context), sampling=framed.sampling, seed=framed.seed)
        generation = await self.weights.sample(self._policy.generate(request))
        self._contexts.keep(framed.key, context, generation.token_ids)
        return HttpReply(HTTPStatus.OK, write_answer(generation), FRAME_TYPE)

    async def _score_frame(self, body: bytes) -> HttpReply:
        model, _, row = read_row(body)
        self._check_model(model, ROW_FRAMES)
        logprobs = (await self.weights.sample(self._policy.compute_logprobs([row])))[0]
        return HttpReply(HTTPStatus.OK, write_row_answer(logprobs), FRAME_TYPE)

    def _check_model(self, name: object, where: str) -> None:
        if name not in (None, self._model):
            do = "send requests for the model that is served"
            raise InvalidInput.of("model", f"be {self._model}", name, where=where, do=do)

    async def _generate(self, body: JsonObject, query: str) -> JsonObject:
        self._check_model(body.get("model"), GENERATE)
        params = body.get("sampling_params")
        request = read_request(body)
        if isinstance(params, dict) and params.get("prompt_logprobs") is not None:
            return await self.weights.sample(self._score(request.token_ids))
        return generation_to_json(request, await self.weights.sample(self._policy.generate(request)), model=self._model)

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
        await self.weights.pause()
        return {"status": "paused"}

    async def _resume(self, body: JsonObject, query: str) -> JsonObject:
        await self.weights.resume()
        return {"status": "resumed"}

    async def _join_group(self, body: JsonObject, query: str) -> JsonObject:
        await self.weights.join(GroupAddress.parse(body.get("init_info"), where="/init_weight_transfer_engine"))
        return {"message": "Weight transfer initialized"}

    async def _start_update(self, body: JsonObject, query: str) -> JsonObject:
        await self.weights.start()
        return {"message": "Weight update started"}

    async def _update(self, body: JsonObject, query: str) -> JsonObject:
        info = body.get("update_info")
        info = info if isinstance(info, dict) else {}
        directory, group, shared = info.get("directory"), self.weights.group, info.get("shared")
        has_base = info.get("has_base") is True
        if info.get("from_group") and group is not None:
            await self.weights.receive(group, has_base=has_base)
        elif isinstance(shared, dict):
            await self.weights.map(shared, has_base=has_base)
        elif isinstance(directory, str):
            await self.weights.load(Path(directory), has_base=has_base)
        else:
            do = "send {update_info: {directory: ...}}, or /init_weight_transfer_engine before {from_group: true}"
            raise InvalidInput.of("update_info", "name a directory", info, where="/update_weights", do=do)
        return {"message": "Weights updated"}

    async def _finish_update(self, body: JsonObject, query: str) -> JsonObject:
        await self.weights.finish(_version(body.get("weight_version"), "/finish_weight_update"))
        return {"message": "Weight update finished"}

    async def _rename(self, body: JsonObject, query: str) -> JsonObject:
        version = _version(body.get("new_version"), "/update_weight_version")
        await self.weights.rename(version)
        return {"success": True, "new_version": str(version)}

    async def _check_weights(self, body: JsonObject, query: str) -> JsonObject:
        if body.get("action") != "checksum":
            do = "send {action: checksum}"
            raise InvalidInput.of("action", "be checksum", body.get("action"), where="/weight_checker", do=do)
        return {"checksums": dict(await self.weights.compute_digests())}

    # ---- state ---------------------------------------------------------------------------------------------------

    async def _health(self) -> HttpReply:
        if self.weights.broken is not None:
            return error_reply(HTTPStatus.SERVICE_UNAVAILABLE, self.weights.broken)
        return HttpReply(HTTPStatus.OK, b"", "text/plain")

    async def _weight_info(self) -> HttpReply:
        return HttpReply.of_json({"weight_version": str(self._policy.version)})

    async def _is_paused(self) -> HttpReply:
        return HttpReply.of_json({"is_paused": self.weights.hold is not None})

    async def _metrics(self) -> HttpReply:
        """Name what is counted as vLLM does; this engine never preempts a sequence."""
        return HttpReply(HTTPStatus.OK, b"vllm:num_preemptions_total 0\n", "text/plain")

    async def _info(self) -> HttpReply:
        return HttpReply.of_json(
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
                "transports": list(transports_of(self.weights.device)),
                "has_frames": True,
            }
        )


def _read_body(request: HttpRequest) -> JsonObject:
    try:
        value = parse_json(request.body, _MAX_PARTS) if request.body else {}
    except ValueError as error:
        raise InvalidInput.of("body", "be JSON", str(error), where=request.path, do="correct it") from error
    if not isinstance(value, dict):
        raise InvalidInput.of("body", "be a JSON object", value, where=request.path, do="correct it")
    return value


def _version(value: object, where: str) -> int:
    text = str(value)
    InvalidInput.unless(text.isdecimal(), "weight version", "be a whole number", value, where=where, do="send e.g. 12")
    return int(text)


def load_server(served: ServedModel) -> PolicyServer:
    """Load a model and make a server of it, which is yet to be started.

    Raises: UnknownName, InvalidInput: no such model, or weights that are not the model's.
    """
    device = prepare_device(served.device, served.threads)
    module: Any = load(served.model, dtype=served.dtype, device=str(device)).model
    if served.adapter is not None:
        module = load_adapter(module, served.adapter).merge_and_unload()
    version, base = 0, AdaptedBase()
    newest = None if served.weights is None else WeightStore(Path(served.weights)).newest()
    if newest is not None:
        base, version = load_weights(module, newest), newest.version
    policy = TransformersPolicy(module, max_batch=served.max_batch, deterministic=False, version=version)
    digest = tokenizer_digest(load_tokenizer(resolve_model(served.tokenizer or served.model)))
    server = PolicyServer(policy, module, model=served.model, tokenizer_digest=digest, token=served.token)
    server.weights.base = base
    return server
