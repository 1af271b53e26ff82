"""A policy that samples from a transformers model in this process, on CPU or GPU.

Requests that wait are served together by one worker thread, so the event loop stays free. Two orders of service:

    deterministic  A round takes every request that waits, sorted, and answers all of them when the last is done. What
                   a round holds then depends on the requests alone, never on timing, and equal rounds after equal
                   rounds give equal bits.
                   Some passes of the event loop come before a round begins, so whatever the answers of one round set
                   off (an episode's next turn, or a search that decides where its next branches begin) is in the next.
                   (Where envs answer from threads, their timing decides.)
    continuous     Requests join between any two tokens and are answered at once. Faster where episodes are uneven;
                   the batch, and with it the rounding, depends on timing.

In both, a request's random numbers come from its own seed, one for each token, and what a context shares with one that
was served before is not computed again until the weights change. Reuse changes a result through rounding only; rounds
repeat bit by bit from the last `update_weights` or `clear_prefix_cache` on.

Weights change in `update_weights` or within `pause(version)`. After any other change `set_version` must be called: a
fused optimizer's step leaves no trace in a tensor by which it could be noticed.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from envgym.agents.policies.engine.batch_engine import BatchEngine
from envgym.agents.policies.engine.cached_model import RECORDERS, CachedModel
from envgym.agents.policies.engine.decode_graphs import DecodeSteps
from envgym.agents.policies.engine.request_queue import Answer, PendingRequest, RequestQueue, WriterPriorityLock
from envgym.agents.policies.engine.requests import FinishedRow, check_request, check_rows
from envgym.agents.protocols import GenerateRequest, Generation, Policy
from envgym.errors import InvalidInput, PolicyFailure, check_known

_WHERE = "TransformersPolicy"
_PASSES = 32
"""Passes of the event loop before a deterministic round; a search needs about ten from an answer to a new branch."""


class TransformersPolicy(Policy):
    """Samples from `model`, also while a learner trains the same module between rounds (within `pause`)."""

    max_top_logprobs = None

    def __init__(
        self,
        model: nn.Module,
        *,
        device: torch.device | str | None = None,
        max_batch: int = 64,
        deterministic: bool = True,
        autocast: torch.dtype | None = None,
        shares_weights: bool = False,
        version: int = 0,
        cuda_graphs: bool = True,
    ) -> None:
        """Prepare to serve.

        Args:
            model: a causal language model of transformers (or a PEFT model around one).
            device: where to put it; None leaves it where it is.
            max_batch: most sequences decoded at a time; the others wait. The cache keeps up to as many contexts.
            deterministic: serve in rounds that do not depend on timing; else continuously.
            autocast: run the forward passes in this type; None: in the type of the weights.
            shares_weights: a learner trains this very module, so `sleep` leaves its weights where they are.
            version: of the weights as they are.
            cuda_graphs: on a GPU, decode Llama-shaped models from recorded steps.

        Raises: InvalidInput: max_batch below 1, or a model with layers that keep no keys and values.
        """
        if max_batch < 1:
            raise InvalidInput.of("max_batch", "be at least 1", max_batch, where=_WHERE, do="pass e.g. 64")
        if device is not None:
            model.to(device)
        self._model = CachedModel(model, autocast=autocast, recorders=RECORDERS if cuda_graphs else {})
        self._engine: BatchEngine[PendingRequest] = BatchEngine(self._model, max_batch=max_batch)
        self._home = self._model.device
        self.shares_weights = shares_weights
        self._deterministic, self._version = deterministic, version
        self._num_passes = _PASSES if deterministic else 1
        self._is_asleep, self._queue = False, RequestQueue()
        self._server: asyncio.AbstractEventLoop | None = None
        """The loop that starts rounds; None while nothing is served."""
        self._lock = WriterPriorityLock()
        """Between those who use the model and those who change it."""
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="transformers-policy")

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one continuation.

        Raises: PolicyFailure: the model failed, gave numbers that are not finite, has no position left for the
            context, or is asleep. InvalidInput: an empty context, or sampling settings out of range.
        """
        if self._is_asleep:
            raise PolicyFailure.of("policy", "be awake", "asleep", where=_WHERE, do="call wake first")
        check_request(request, self._model.vocabulary, positions=self._model.max_positions, where=_WHERE)
        loop = asyncio.get_running_loop()
        ticket = PendingRequest(loop, loop.create_future())
        with self._queue.lock:
            self._queue.put(ticket, request)
            is_idle = self._server is None or (self._server is not loop and not self._server.is_running())
            if is_idle:
                self._server = loop
        if is_idle:
            _call_after(self._num_passes, loop, self._serve_or_rest)  # after all requests that are about to come
        return await ticket.answer

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        check_rows(token_ids, self._model.vocabulary, positions=self._model.max_positions, where=_WHERE)
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._compute_logprobs, list(token_ids))

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy weights in place, after the round that is being served; a tensor that is the model's own is left.

        Raises: UnknownName: the model has no such tensor. InvalidInput: another shape. Nothing was copied then.
        """
        pairs = pair_weights(self._model.module, named_tensors)
        with self.pause(version):
            copy_weights(pairs)

    def set_version(self, version: int) -> None:
        """Name the weights that are in place, after the round that is being served, and clear the prefix cache."""
        with self.pause(version):
            pass

    def clear_prefix_cache(self) -> None:
        """Compute every context anew, after the round that is being served."""
        with self._lock.write():
            self._engine.clear_prefix_cache()

    def take_metrics(self) -> dict[str, float]:
        """Return how decoding steps since the last call ran, on a device that can record them.

        `engine/recorded_steps` is the share of steps that ran from a recording, and `engine/recordings` the number of
        recordings that were made. Nothing is returned on another device, and where nothing was sampled.
        """
        steps, self._model.steps = self._model.steps, DecodeSteps(reason=self._model.steps.reason)
        if not steps.count:
            return {}
        share = steps.num_recorded / steps.count
        return {"engine/recorded_steps": share, "engine/recordings": float(steps.num_recordings)}

    @property
    def unrecorded(self) -> str | None:
        """Why decoding steps run call by call, on a device that could record them; None: they are recorded."""
        return self._model.steps.reason

    def sleep(self) -> None:
        """Free the cache, and on a GPU the weights too (they wait in main memory) unless a learner shares them."""
        with self._lock.write():
            self._is_asleep = True
            self._engine.reset()
            if self._home.type == "cuda":
                if not self.shares_weights:
                    self._model.module.to("cpu")
                torch.cuda.empty_cache()

    def wake(self) -> None:
        with self._lock.write():
            if not self.shares_weights:
                self._model.module.to(self._home)
            self._is_asleep = False

    @contextmanager
    def pause(self, version: int | None = None) -> Iterator[None]:
        """Hold sampling off while a learner uses the model: the requests under way end first, new ones wait.

        Whoever waits samples from the weights that the block leaves, as `version`, behind contexts computed by them.
        """
        with self._lock.write():
            try:
                yield
            finally:
                if version is not None:
                    self._name_weights(version)

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Hold sampling off between two tokens; yield what names the version of weights that were changed meanwhile.

        Requests under way go on with them. What was sampled before stays, and so do its keys and values: a generation
        tells which version sampled which token. The policy must not be put to sleep meanwhile.
        """
        with self._lock.hold():
            yield self._name_weights

    def _name_weights(self, version: int) -> None:
        self._engine.change_version(version)
        self._version = version

    # ---- rounds: started on the loop, served by the worker -------------------------------------------------------

    def _serve_or_rest(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._queue.lock:
            if self._server is not loop:
                return
            if not len(self._queue):
                self._server = None
                return
        self._worker.submit(self._serve).add_done_callback(lambda done: self._after(done.exception(), loop))

    def _after(self, error: BaseException | None, loop: asyncio.AbstractEventLoop) -> None:
        """In the worker: pass a failure on, then let the loop look whether somebody waits again."""
        if error is not None:
            self._engine.reset()
            failure = PolicyFailure(f"sampling failed: {type(error).__name__}: {error}")
            self._queue.hand_out([(ticket, failure) for ticket in self._queue.served])
        try:
            # First come those whom the answers woke.
            loop.call_soon_threadsafe(_call_after, self._num_passes, loop, self._serve_or_rest)
        except RuntimeError:  # the loop is closed: nobody there waits any more
            with self._queue.lock:
                if self._server is loop:  # else another loop has taken over already
                    self._server = None

    def _serve(self) -> None:
        """In the worker: serve until nobody is left of this round (or, continuously, until nobody waits)."""
        answers: list[Answer] = []
        arrived: list[tuple[PendingRequest, GenerateRequest]] | None = None
        is_over = False
        while not is_over:
            with self._lock.read(), self._model.serving():
                arrived = self._queue.take() if arrived is None else arrived
                is_over = self._sample(arrived, answers)
        self._queue.hand_out(answers)

    def _sample(self, arrived: list[tuple[PendingRequest, GenerateRequest]], answers: list[Answer]) -> bool:
        """In the worker: sample until nobody is left, or until weights change between two tokens; say which."""
        engine = self._engine
        while arrived or len(engine.rows):
            if self._lock.is_held:
                return False
            batch_size = min(len(arrived), engine.room())
            if batch_size == len(arrived) or batch_size * 4 >= engine.rows.capacity:
                engine.admit(arrived[:batch_size], self._version)
                del arrived[:batch_size]
            answers += [_answered(ended) for ended in engine.step()]
            self._drop_abandoned()
            if not self._deterministic:
                self._queue.hand_out(answers)
                answers.clear()
                if not self._lock.has_writer:
                    arrived += self._queue.take()
        return True

    def _drop_abandoned(self) -> None:
        abandoned = [ticket.answer.cancelled() for ticket in self._engine.rows.tickets]
        if any(abandoned):
            self._queue.served.difference_update(ended.ticket for ended in self._engine.drop(abandoned))

    def _compute_logprobs(self, rows: list[tuple[int, ...]]) -> list[tuple[float, ...]]:
        with self._lock.read(), self._model.serving():
            return self._engine.compute_logprobs(rows)


def pair_weights(module: nn.Module, named_tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Return each tensor after the module's own one of its name. Raises: UnknownName, InvalidInput: they do not fit."""
    own = {
        **dict(module.named_buffers(remove_duplicate=False)),
        **dict(module.named_parameters(remove_duplicate=False)),
    }
    pairs: list[tuple[Tensor, Tensor]] = []
    for name, tensor in named_tensors:
        check_known("weight", name, own, where=_WHERE)
        if own[name].shape != tensor.shape:
            rule, do = f"have shape {list(own[name].shape)}", "send the weights of the same architecture"
            raise InvalidInput.of(name, rule, list(tensor.shape), where=_WHERE, do=do)
        pairs.append((own[name], tensor))
    return pairs


@torch.no_grad()
def copy_weights(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy each second tensor to the first, where it is another."""
    for target, tensor in pairs:
        if target.data_ptr() != tensor.data_ptr():
            target.copy_(tensor)


def _call_after(
    num_passes: int, loop: asyncio.AbstractEventLoop, function: Callable[[asyncio.AbstractEventLoop], None]
) -> None:
    """Call `function` with the loop when it has made so many passes more."""
    if num_passes:
        loop.call_soon(_call_after, num_passes - 1, loop, function)
    else:
        function(loop)


def _answered(ended: FinishedRow[PendingRequest]) -> Answer:
    if ended.generation is not None:
        return ended.ticket, ended.generation
    return ended.ticket, PolicyFailure("the model returned logits that are not finite")
