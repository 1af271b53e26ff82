"""The seconds of the parts of a train step, from counts of operations and bytes and the constants of a device."""

import math

from envgym.trainer.checks.weight_canary import MAX_TEXT
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.train_step import FORWARD_SHARE, learning_passes
from envgym.trainer.planning.constants import ControlCosts, Device
from envgym.trainer.planning.engine import engine_batch, itemsize, uses_vllm
from envgym.trainer.planning.shapes import ModelShape
from envgym.trainer.planning.workload import Packing, Workload, num_episodes
from envgym.trainer.settings import TrainSettings


def sampling_s(settings: TrainSettings, workload: Workload, shape: ModelShape, device: Device) -> float:
    """Return the time of the engines: prefills and decoding steps, in waves of as many sequences as fit.

    A decoding step reads all weights and the cache of each sequence. Before a turn, the new tokens of each sequence are
    prefilled; the episodes of a group share the prefill of their prompt. The engine of transformers copies the cached
    context of each sequence to its row of the next turn.
    """
    batch = engine_batch(settings, workload, shape)
    share = math.ceil(num_episodes(settings) / max(1, settings.launch.servers))
    waves, devices, has_vllm = share / batch, settings.engine.tensor_parallel, uses_vllm(settings)
    cache = batch * workload.mean_context * shape.cached * itemsize(settings.model.sampler_dtype)
    layers_s = shape.layers * (device.recorded_layer_s if has_vllm else device.decode_layer_s)
    flops = devices * (device.decode_flops or device.train_flops)
    step_s = layers_s + batch * (device.sequence_s + 2 * shape.parameters / flops)
    step_s += shape.weights / (devices * device.bandwidth) + cache / (devices * device.cache_rate)
    moved_s = 0.0 if has_vllm else 2 * cache / device.bandwidth
    turn_s = workload.turn_tokens * step_s + layers_s + moved_s + workload.env_s
    prompts = math.ceil(share / settings.rollout.group_size)
    prefilled = prompts * workload.prompt_tokens + share * workload.replies
    pairs = prompts * workload.prompt_tokens**2 / 2 + share * workload.replies * workload.mean_context
    prefill_s = 2 * shape.body * prefilled / (devices * device.train_flops)
    prefill_s += 4 * shape.layers * shape.width * pairs / (devices * device.attention_rate)
    return waves * workload.turns * turn_s + prefill_s * min(1, workload.turns)


def control_s(settings: TrainSettings, workload: Workload, control: ControlCosts) -> float:
    """Return the time of the process with the most turns: the run's own, or a rollout worker."""
    turns = num_episodes(settings) * workload.turns
    if not settings.launch.servers:
        return turns * control.local_turn_s
    turns = math.ceil(turns / max(1, settings.launch.rollout_workers))
    return turns * (control.turn_s + control.context_s * workload.context / 2)


def learn_s(
    settings: TrainSettings,
    workload: Workload,
    shape: ModelShape,
    device: Device,
    objective: Objective,
) -> float:
    """Return the time of all passes over the rows of a step, and of the optimizer."""
    if not workload.turns:
        return 0.0
    optim, ranks = settings.optim, settings.launch.learners
    packing = Packing.of(settings, workload, is_coupled=objective.is_coupled)
    sampled = settings.rollout.groups * settings.rollout.group_size * workload.turns * workload.turn_tokens
    flops = 6.0 * (shape.body * packing.tokens + shape.head * sampled)
    pair_flops = 12 * shape.layers * shape.width * packing.pairs
    if settings.model.lora is not None:
        flops *= 1 - FORWARD_SHARE  # no gradient of the frozen weights
    if settings.model.gradient_checkpointing:
        flops, pair_flops = (count * (1 + FORWARD_SHARE) for count in (flops, pair_flops))
    activation_bytes = packing.tokens * max(
        shape.micro_batch.per_token, shape.layers * shape.micro_batch.per_token_in_layer
    )
    compute_s = (
        flops / device.train_flops + pair_flops / device.attention_rate + activation_bytes / device.activation_bandwidth
    )
    pass_s = compute_s / ranks + packing.batches * shape.layers * device.pass_layer_s
    if ranks > 1:  # weights are gathered for the forward and the backward pass, and gradients are scattered
        gather_s = packing.batches * (3 * shape.weights / device.link + shape.layers * device.gather_layer_s)
        pass_s = max(pass_s, gather_s) if device.link_overlaps else pass_s + gather_s
    updates = optim.epochs * optim.minibatches
    optimizer_s = updates * 2 * shape.state_of(ranks).total / ranks / device.bandwidth
    return learning_passes(optim, objective) * pass_s + optimizer_s


def update_s(settings: TrainSettings, shape: ModelShape, device: Device, control: ControlCosts) -> float:
    """Return the time of new weights: to rank 0 from the shards of all ranks, and to the policy servers."""
    servers, seconds = settings.launch.servers, 0.0
    if settings.launch.learners > 1:
        seconds += shape.sent / device.link + shape.layers * device.gather_layer_s * FORWARD_SHARE
    if not servers:
        return seconds
    if settings.launch.transport == "files":
        return seconds + shape.sent * (control.file_s + control.file_server_s * servers)
    # Servers of a group pass the weights on.
    return seconds + shape.sent * (control.gloo_s if settings.launch.transport == "gloo" else 1 / control.transport)


def checks_s(settings: TrainSettings, shape: ModelShape, device: Device) -> float:
    """Return the time of the weight canary: forward passes of a short text, by the engine and by the learner."""
    if not settings.canary.enabled:
        return 0.0
    layers_s = shape.layers * (device.decode_layer_s + FORWARD_SHARE * device.pass_layer_s)
    if settings.launch.learners > 1:
        layers_s += FORWARD_SHARE * (shape.layers * device.gather_layer_s + shape.weights / device.link)
    return layers_s + 2 * MAX_TEXT * 2 * shape.parameters / device.train_flops
