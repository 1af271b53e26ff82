"""The transformers twin of vLLM's server: the same routes around the continuous-batching transformers policy.

It serves one model, of whose weights nobody else holds a reference. An update goes through start, update and finish;
one that fails leaves the server broken: it then answers nothing any more and must be started again.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from torch import nn

from envgym.agents.policies.serving.collective import GroupAddress, transports_of
from envgym.agents.policies.serving.http import AsyncHttpServer, HttpRequest, ServerLimits, ServerReply
from envgym.agents.policies.serving.identity import max_positions, model_digest
from envgym.agents.policies.serving.served_weights import ServedWeights, ServerUnavailable
from envgym.agents.policies.serving.shared_memory import read_shared
from envgym.agents.policies.serving.wire import GENERATE, INFO, PROTOCOL, generation_to_json, read_request
from envgym.agents.policies.transformers import TransformersPolicy
from envgym.core.json_types import JsonObject, parse_json
from envgym.errors import InvalidInput, PolicyFailure

_MAX_PARTS = 4_000_000
"""Values in one body."""


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
        self.weights = ServedWeights(policy, module)
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
        self.weights.close()

    async def _answer(self, request: HttpRequest) -> ServerReply:
        try:
            if request.method == "GET" and request.path in self._get:
                return await self._get[request.path]()
            answer = self._post.get(request.path)
            if request.method != "POST" or answer is None:
                got = f"{request.method} {request.path}"
                return ServerReply.refuse(HTTPStatus.NOT_FOUND, f"path must be one of the routes, got {got}.")
            self.weights.check_sound()
            return ServerReply.of(await answer(_read_body(request), request.query))
        except ServerUnavailable as error:
            return ServerReply.refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except PolicyFailure as error:
            return ServerReply.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except InvalidInput as error:
            return ServerReply.refuse(HTTPStatus.BAD_REQUEST, str(error))

    # ---- sampling ------------------------------------------------------------------------------------------------

    async def _generate(self, body: JsonObject, query: str) -> JsonObject:
        if body.get("model") not in {None, self._model}:
            do = "send requests for the model that is served"
            raise InvalidInput.of("model", f"be {self._model}", body["model"], where=GENERATE, do=do)
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
        """Meet a run in a process group, over which its weights will come."""
        fields: Any = body.get("init_info")
        try:
            address = GroupAddress(**fields)
        except TypeError as error:
            where, do = "/init_weight_transfer_engine", "send host, port, backend and timeout_s"
            raise InvalidInput.of("init_info", "say where the group meets", str(error), where=where, do=do) from error
        await self.weights.join(address)
        return {"message": "Weight transfer initialized"}

    async def _start_update(self, body: JsonObject, query: str) -> JsonObject:
        await self.weights.start()
        return {"message": "Weight update started"}

    async def _update(self, body: JsonObject, query: str) -> JsonObject:
        info = body.get("update_info")
        info = info if isinstance(info, dict) else {}
        directory, group, shared = info.get("directory"), self.weights.group, info.get("shared")
        if info.get("from_group") and group is not None:
            await self.weights.receive(group.receive())
        elif isinstance(shared, dict):
            await self.weights.receive(read_shared(shared))
        elif isinstance(directory, str):
            await self.weights.load(Path(directory))
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

    async def _health(self) -> ServerReply:
        if self.weights.broken is not None:
            return ServerReply.refuse(HTTPStatus.SERVICE_UNAVAILABLE, self.weights.broken)
        return ServerReply(HTTPStatus.OK, b"", "text/plain")

    async def _weight_info(self) -> ServerReply:
        return ServerReply.of({"weight_version": str(self._policy.version)})

    async def _is_paused(self) -> ServerReply:
        return ServerReply.of({"is_paused": self.weights.hold is not None})

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
                "transports": list(transports_of(self.weights.device)),
            }
        )


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
