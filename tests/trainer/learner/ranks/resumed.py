"""One rank of a learner that is saved and goes on, or is loaded first; see `test_checkpoints.py`."""

import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.ranks import model_files
from envgym.trainer.learner.ranks.group import RankGroup
from envgym.trainer.learner.ranks.learner import RankCalls, RankLearner
from envgym.trainer.learner.ranks.meeting import Meeting
from envgym.trainer.learner.settings import CriticSettings, ObjectiveSettings, OptimSettings
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import PpoClip
from tests.trainer.learner.ranks.cases import CASES, CPU, OPTIM, model_of, rows_of

CASE = CASES["packed"]
FILE_BYTES = 3000
"""Of the weights in one file of a model that ranks write."""
SETTINGS = OptimSettings.model_validate({**OPTIM, "grad_clip": 5.0})
OBJECTIVE = Objective(loss=PpoClip(), correction=NoCorrection(), settings=ObjectiveSettings(), temperature=1.0)


def critic_of(model: Any) -> Critic:  # PreTrainedModel
    return Critic(model, CriticSettings(lr=0.01), SETTINGS, device=CPU)


def weights_of(model: Any, learner: Learner) -> list[torch.Tensor]:  # as above
    assert learner.critic is not None, "all cases have one"
    return [value.detach().clone() for value in (*model.parameters(), *learner.critic.head.parameters())]


def first_half(learner: Learner, whole: Any, folder: Path) -> list[torch.Tensor]:  # as above
    """Make a train step, save it with its model into a folder, and return what the next one makes of them."""
    learner.train_step(rows_of(CASE), OBJECTIVE, step=0)
    learner.compute_logprobs(rows_of(CASE), 1.0)  # leaves parameters gathered
    learner.save(folder)
    gathered = {name: tensor.clone() for name, tensor in learner.weights()}
    torch.save(gathered, folder / "weights.pt")
    learner.save_model(folder / "model")
    return second_half(learner, whole)


def second_half(learner: Learner, whole: Any) -> list[torch.Tensor]:  # as above
    learner.train_step(rows_of(CASE), OBJECTIVE, step=1)
    return weights_of(whole, learner)


def load(learner: Learner, whole: Any, folder: Path) -> None:  # as above
    saved = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=CASE.dtype)
    whole.load_state_dict(saved.state_dict())
    learner.take_weights()
    learner.load(folder)


class GatheredBytes:
    """Counts the bytes of whole tensors that a rank holds at a time."""

    def __init__(self) -> None:
        """Begin to count, and let the ranks write files of a few weights."""
        self.now = self.most = 0
        model_files._SHARD_BYTES = FILE_BYTES  # type: ignore[misc]  # of this process
        sound: Any = DTensor.full_tensor

        def counting(tensor: DTensor) -> torch.Tensor:
            whole: torch.Tensor = sound(tensor)
            self.change(whole.nbytes)
            weakref.finalize(whole, self.change, -whole.nbytes)
            return whole

        DTensor.full_tensor = counting  # type: ignore[assignment,method-assign]  # as above

    def change(self, num_bytes: int) -> None:
        self.now += num_bytes
        self.most = max(self.most, self.now)


def main(what: str, folder: Path, out: Path) -> None:
    """Save, or load, as one rank; rank 0 writes the weights that it ends with."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    calls = RankCalls(RankGroup(CPU, Meeting.of_torchrun()))
    model, whole = model_of(CASE), model_of(CASE, seed=5)
    is_first = calls.group.is_first
    learner = RankLearner(
        model,
        calls,
        whole=whole if is_first else None,
        optim=SETTINGS,
        num_steps=4,
        device=CPU,
        critic=critic_of(model),
    )
    counted = GatheredBytes()
    if not is_first:
        calls.follow()
    else:
        learner.take_weights()
        if what == "save":
            weights = first_half(learner, whole, folder)
        else:
            load(learner, whole, folder)
            weights = second_half(learner, whole)
        torch.save(weights, out)
        calls.end()
    (folder / f"{what}-bytes-{calls.group.rank}").write_text(str(counted.most))
    calls.group.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
