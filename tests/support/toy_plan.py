"""A toy model, device and workload of plans, with numbers that are easy to compute with."""

from typing import Any

from envgym.trainer.learner.memory import MicroBatchMemory, StateMemory
from envgym.trainer.method import build_method
from envgym.trainer.planning.constants import ControlCosts, Device
from envgym.trainer.planning.predict import Plan, predict
from envgym.trainer.planning.shapes import ModelShape
from envgym.trainer.planning.workload import Workload
from envgym.trainer.settings import train_settings

GIB = 2**30
DEVICE = Device(
    name="toy",
    memory=100 * GIB,
    train_flops=1e12,
    pass_layer_s=0.01,
    bandwidth=1e9,
    link=1e9,
    decode_layer_s=0.001,
    recorded_layer_s=0.0001,
)
CONTROL = ControlCosts(
    turn_s=0.002, context_s=1e-6, local_turn_s=1e-4, file_s=2e-9, file_server_s=1e-9, gloo_s=4e-9, transport=5e9
)
SHAPE = ModelShape(
    config=None,
    layers=10,
    body=90_000_000,
    head=10_000_000,
    outside=20_000_000,
    width=100,
    cached=1000,
    state=StateMemory(weights=4 * GIB, gradients=4 * GIB, optimizer=8 * GIB),
    weights=4 * GIB,
    micro_batch=MicroBatchMemory(per_token=GIB / 100, per_token_in_layer=GIB / 1000, head=GIB),
)
WORK = Workload(turns=2, prompt_tokens=100, turn_tokens=50, reply_tokens=20)
"""An episode has 100 + 2 * 50 + 20 = 220 tokens."""


def planned(*, shape: ModelShape = SHAPE, work: Workload = WORK, device: Device = DEVICE, **sections: Any) -> Plan:
    return predict(settings_of(**sections), work, shape, device, CONTROL, build_method(settings_of()).objective)


def settings_of(**sections: Any) -> Any:  # TrainSettings
    base: dict[str, Any] = {
        "envs": [{"id": "math/arithmetic-v0"}],
        "rollout": {"groups": 2, "group_size": 4},
        "optim": {"micro_batch_tokens": 256},
    }
    settings = train_settings({**base, **sections})
    return settings.model_copy(update={"model": settings.model.on("cpu")})
