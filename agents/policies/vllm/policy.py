"""A policy that samples with vLLM, on CPU or GPU: token ids in, token ids and log-probs out.

The engine is vLLM's asynchronous one, with a copy of the weights in a process of its own. Log-probs are those of the
distribution sampled from (`logprobs_mode="processed_logprobs"`). Contexts that were computed before are found in its
prefix cache, but only under the weights that computed them: every update changes the salt of all keys.
A request's random numbers come from its own seed; the batch that it is served in changes them through rounding only.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from envgym.agents.policies.engine.requests import max_sampled_tokens
from envgym.agents.policies.serving.identity import read_config
from envgym.agents.policies.vllm.arguments import check_split
from envgym.agents.policies.vllm.engine import VllmEngine, VllmLaunchSettings, is_on_cpu, one_line
from envgym.agents.policies.vllm.wire import PROMPT_LOGPROBS, read_generation, read_row_logprobs, sampling_arguments
from envgym.agents.policies.vllm.worker import StagedFiles, WeightStaging
from envgym.agents.protocols import GenerateRequest, Generation, Policy
from envgym.errors import InvalidInput, PolicyFailure

_WHERE = "VllmPolicy"
_GIB = 1 << 30


class VllmPolicy(Policy):
    """Samples from a model that vLLM loads from a directory or the hub."""

    max_top_logprobs = 20  # vLLM's own limit

    def __init__(
        self,
        source: str,
        *,
        dtype: str = "float32",
        head_dtype: str = "same",
        max_context: int | None = None,
        max_batch: int = 64,
        cache_gib: float = 2.0,
        threads: int | None = None,
        with_raw: bool = False,
        restarts: int = 3,
        version: int = 0,
        tensor_parallel: int = 1,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Start the engine; this takes as long as loading vLLM and the model.

        Args:
            source: directory in Hugging Face form, or a hub name.
            dtype: of weights and cache.
            head_dtype: of the product that gives the logits: `same`, or `float32`. Source: 2506.13585.
            max_context: longest context with its sample; None: as far as the model has positions.
            max_batch: most sequences sampled at a time; the others wait.
            cache_gib: memory for keys and values.
            threads: of torch in the engine's process; None: torch's own choice.
            with_raw: state raw log-probs also where they differ from those sampled from; costs a forward pass each.
            restarts: how often in a row the engine may die, without an answer in between, and is started again.
            version: of the weights as they are.
            tensor_parallel: devices that the weights are split over.
            arguments: more arguments of vLLM's engine, by the names of `vllm.AsyncEngineArgs`.

        Raises:
            SettingsError: vLLM is missing, built for another torch, or does not load.
            InvalidInput: a model that vLLM cannot load or split, no memory for the cache, or a number out of range.
            UnknownName: vLLM has no such argument.
        """
        for name, value in {"max_batch": max_batch, "cache_gib": cache_gib}.items():
            InvalidInput.unless(value > 0, name, "be above 0", value, where=_WHERE, do="see VllmPolicy")
        config = read_config(source)
        positions = getattr(config.get_text_config(), "max_position_embeddings", None)
        # One fewer, as vLLM scores a sequence only where a token could follow it.
        self._positions: int = max_context or (positions or 2048) - 1
        if positions is not None and self._positions >= positions:
            must, do = f"be below the model's {positions} positions", "lower engine.max_context"
            raise InvalidInput.of("max_context", must, self._positions, where=_WHERE, do=do)
        check_split(config, tensor_parallel, where=_WHERE)
        self._staging = WeightStaging(config, getattr(torch, dtype))
        self._with_raw, self._version = with_raw, version
        self._salt = 0
        self._numbers = count()
        self._is_asleep = False
        spec = VllmLaunchSettings(
            source=source,
            dtype=dtype,
            head_dtype=head_dtype,
            max_tokens=self._positions + 1,
            max_batch=max_batch,
            cache_bytes=int(cache_gib * _GIB),
            threads=threads,
            restarts=restarts,
            tensor_parallel=tensor_parallel,
            arguments=arguments,
        )
        self._engine = VllmEngine(spec, self._load_newest)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one continuation.

        Raises: PolicyFailure: the engine died, gave numbers that are not finite, has no position left for the
            context, or is asleep. InvalidInput: an empty context, or sampling settings out of range.
        """
        self.check_sampling(request.sampling)
        limit = max_sampled_tokens(request, positions=self._positions, where=_WHERE)
        self._check_awake()
        return await asyncio.wrap_future(self._engine.submit(self._generate(request, limit)))

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return for each sequence the raw log-prob of every token given those before it; 0.0 for the first.

        Raises: PolicyFailure: the engine died, is asleep, or has fewer positions than a sequence tokens.
        """
        self._check_awake()
        longest = max(map(len, token_ids), default=0)
        if longest > self._positions:
            must, do = f"fit the engine's {self._positions} positions", "raise engine.max_context"
            raise PolicyFailure.of("sequence", must, f"{longest} tokens", where=_WHERE, do=do)
        return await asyncio.wrap_future(self._engine.submit(self._compute_logprobs(list(token_ids))))

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Put new weights in place when the requests under way are answered, and clear the prefix cache.

        A policy that sleeps samples from them as soon as it wakes.

        Raises: UnknownName, InvalidInput: not the model's weights, or some of them only. PolicyFailure: the engine is
            dead and cannot be started again.
        """
        files = self._staging.write(named_tensors)
        self._engine.run(self._update(files, version))

    def set_version(self, version: int) -> None:
        """Name the weights that are in place when the requests under way are answered, and clear the prefix cache."""
        self._engine.run(self._rename(version))

    def clear_prefix_cache(self) -> None:
        """Compute every context anew when the requests under way are answered."""
        self._engine.run(self._rename(None))

    def sleep(self) -> None:
        """Give the memory of cache and weights back: on a GPU to the device, on a CPU by ending the process.

        The weights are dropped: `wake` loads the newest again. May be called twice.
        """
        if not self._is_asleep:
            self._is_asleep = True
            self._engine.run(self._sleep())

    def wake(self) -> None:
        """Get ready to sample again, with the newest weights. May be called twice.

        Raises: PolicyFailure: the engine is dead and cannot be started again, or there is too little memory.
        """
        if self._is_asleep:
            self._engine.run(self._wake())
            self._is_asleep = False

    def close(self) -> None:
        """End the engine; may be called twice."""
        self._engine.close()
        self._staging.close()

    def _check_awake(self) -> None:
        if self._is_asleep:
            raise PolicyFailure.of("policy", "be awake", "asleep", where=_WHERE, do="call wake first")

    # ---- on the engine's loop ------------------------------------------------------------------------------------

    async def _generate(self, request: GenerateRequest, limit: int) -> Generation:
        async with self._engine.read() as llm:
            version, arguments = self._version, sampling_arguments(request, limit=limit)
            answer = await self._ask(llm, request.token_ids, arguments)
            generation = read_generation(request, answer, version=version)
            if generation.raw_logprobs is not None or not self._with_raw:
                return generation
            logprobs = await self._compute_row_logprobs(llm, request.token_ids + generation.token_ids)
        return replace(generation, raw_logprobs=logprobs[len(request.token_ids) :])

    async def _compute_logprobs(self, rows: list[tuple[int, ...]]) -> list[tuple[float, ...]]:
        async with self._engine.read() as llm:
            return list(await asyncio.gather(*[self._compute_row_logprobs(llm, row) for row in rows]))

    async def _compute_row_logprobs(self, llm: Any, row: tuple[int, ...]) -> tuple[float, ...]:  # AsyncLLM
        if not row:
            return ()
        return read_row_logprobs(row, await self._ask(llm, row, PROMPT_LOGPROBS))

    async def _ask(self, llm: Any, token_ids: tuple[int, ...], arguments: dict[str, Any]) -> Any:  # as above
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**arguments, output_kind=RequestOutputKind.FINAL_ONLY)
        prompt = {"prompt_token_ids": list(token_ids), "cache_salt": str(self._salt)}
        answers = [answer async for answer in llm.generate(prompt, params, request_id=str(next(self._numbers)))]
        return answers[-1]

    async def _rename(self, version: int | None) -> None:
        """Clear the prefix cache; None: the weights keep the version that they have by then."""
        async with self._engine.write():
            self._salt += 1
            self._version = self._version if version is None else version

    async def _update(self, files: StagedFiles, version: int) -> None:
        if self._is_asleep:
            self._salt += 1
            self._version = version
            self._staging.accept(files)
            return
        try:
            async with self._engine.write() as llm:
                self._salt += 1
                self._version = version
                self._staging.accept(files)
                await self._load_newest(llm)
        except PolicyFailure:
            if self._staging.newest != files:
                raise  # else it died while loading, and loads them when it is started again

    async def _load_newest(self, llm: Any) -> None:  # AsyncLLM
        if self._staging.newest is not None:
            await self._load(llm)

    async def _load(self, llm: Any) -> None:  # as above
        """Load the newest weights; where there are none, those that the model was loaded with."""
        files = self._staging.newest or (None, None)
        await llm.collective_rpc("load_staged", args=tuple(None if file is None else str(file) for file in files))

    async def _sleep(self) -> None:
        async with self._engine.write() as llm:
            if is_on_cpu():
                await self._engine.stop()
            else:
                await llm.sleep(level=2)

    async def _wake(self) -> None:
        """Load weights before there is a cache again, so that both and what loading needs are never there at once."""
        async with self._engine.write() as llm:  # starts the process where there is none
            if not await llm.is_sleeping():
                return
            self._salt += 1
            try:
                await llm.wake_up(tags=["weights"])
                await self._load(llm)
                await llm.wake_up(tags=["kv_cache"])
            except Exception as error:  # vLLM raises whatever its parts raise
                must, do = "get its memory back", "lower engine.cache_gib, or the memory of a train step"
                raise PolicyFailure.of("vLLM", must, one_line(error), where=_WHERE, do=do) from error
