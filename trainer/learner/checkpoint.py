"""Checkpoints, and the frozen reference model: everything that the next step depends on.

Both are written beside their final place and renamed, so that a reader sees all of them or nothing.

A checkpoint after step n holds the model (an ordinary Hugging Face or peft directory), the optimizer (one file, or
those of several ranks), the critic where there is one, in `parts/NAME` what every method with a state of its own wrote,
and a small JSON state, which lists these files with their sizes. Randomness needs no state: every random choice derives
from the run's seed and the step.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.distributed.tensor import DTensor

from envgym.agents.models.export import indexed_files
from envgym.agents.models.weights import widen_head
from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.runs.files import move_into_place, write_json
from envgym.trainer.learner.causal_lm import lm_head_of
from envgym.trainer.learner.critic import Critic
from envgym.trainer.methods.protocols import Checkpointed, TaskStats

_PREFIX = "step-"
_STATE, _OPTIMIZER, _CRITIC, _PARTS = "state.json", "optimizer.pt", "critic.pt", "parts"
SHARDS = "optimizer"
"""Folder of a checkpoint with the optimizer's state of several ranks, instead of a file."""
_UNREADABLE = (
    RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError, UnpicklingError, SafetensorError
)  # fmt: skip
"""What readers raise on files that are cut short, or hold something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """The part of a checkpoint that is neither weights nor optimizer."""

    step: int
    """Train steps done."""
    stats: Mapping[tuple[str, int], TaskStats]
    """What training has seen of each task."""


class CheckpointedLearner(Checkpointed, Protocol):
    """The learner of a run, whose model is a part of the checkpoint."""

    def save_model(self, folder: Path) -> None:
        """Write the model as a Hugging Face or peft directory."""
        ...


def save_checkpoint(
    folder: Path,
    *,
    state: TrainState,
    tokenizer: Any,  # PreTrainedTokenizerFast
    learner: CheckpointedLearner,
    keep: int,
    best: int | None = None,
    parts: Mapping[str, Checkpointed] = MappingProxyType({}),
) -> Path:
    """Write the checkpoint of `state.step` and delete older ones; each of `parts` has its own folder.

    The newest `keep` stay, and that of step `best`.

    What a crash leaves behind is a draft that no reader takes for a checkpoint, and that the next one replaces.
    """
    place = folder / _name_of(state.step)
    beside = folder / ".draft"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    with _telling_of_failure(place):
        learner.save_model(beside / "model")
        tokenizer.save_pretrained(beside / "model")
        learner.save(beside)
    sizes = {name: _save_part(part, beside / _PARTS / name) for name, part in parts.items()}
    stats = [[env, index, *values] for (env, index), values in state.stats.items()]
    write_json(beside / _STATE, {"step": state.step, "stats": stats, **({"parts": sizes} if sizes else {})})
    if place.exists():
        shutil.rmtree(place)
    move_into_place(beside, place)
    drop_old_checkpoints(folder, keep=keep, best=best)
    return place


def drop_old_checkpoints(folder: Path, *, keep: int, best: int | None = None) -> None:
    """Delete all checkpoints but the newest `keep` and that of step `best`."""
    for old in checkpoints(folder)[:-keep]:
        if old.name != _name_of(best):
            shutil.rmtree(old)


def checkpoint_of_step(run: Path, step: int) -> Path:
    """Return where a run keeps the checkpoint after `step` train steps."""
    return run / "checkpoints" / _name_of(step)


def _name_of(step: int | None) -> str:
    return "" if step is None else f"{_PREFIX}{step:06d}"


def _save_part(part: Checkpointed, folder: Path) -> dict[str, int]:
    """Let a part write its state and return the size of each of its files, in bytes."""
    folder.mkdir(parents=True)
    part.save(folder)
    return {str(file.relative_to(folder)): file.stat().st_size for file in sorted(folder.rglob("*")) if file.is_file()}


def save_model(model: Any, place: Path) -> None:  # PreTrainedModel or PeftModel
    """Write the weights alone (adapters alone, where there are some) beside their place, and rename."""
    beside = place.with_name(f".{place.name}.draft")
    shutil.rmtree(beside, ignore_errors=True)
    with _telling_of_failure(place):
        write_model(model, beside)
    move_into_place(beside, place)


@contextmanager
def _telling_of_failure(place: Path) -> Iterator[None]:
    """Turn the errors of writers into one sentence. Raises: RunError: a full disk, or a model that cannot be saved."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        do = "free some space, then resume the run"
        reason = str(error).splitlines()[0]
        raise RunError.of("checkpoint", "be written completely", reason, where=str(place), do=do) from error
    except (ValueError, TypeError) as error:  # of transformers and tokenizers, for settings that they refuse to write
        do = "correct the model's or the tokenizer's JSON files"
        reason = " ".join(line.strip() for line in str(error).splitlines())
        must = "hold a model that save_pretrained can write"
        raise RunError.of("checkpoint", must, reason, where=str(place), do=do) from error


def write_model(model: Any, folder: Path) -> None:  # as above
    """Write the weights as `save_pretrained` does: the active adapter alone, where there are adapters."""
    adapters = {"selected_adapters": [model.active_adapter]} if hasattr(model, "peft_config") else {}
    model.save_pretrained(folder, **adapters)


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    named = (path for path in folder.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdecimal())
    complete = (path for path in named if (path / _STATE).exists())
    return sorted(complete, key=lambda path: int(path.name.removeprefix(_PREFIX)))


def newest_checkpoint(run: Path) -> Path | None:
    """Return the newest checkpoint of a run, None where it has none.

    Raises: RunError: one of its files cannot be read; the newest that can is offered.
    """
    saved = checkpoints(run / "checkpoints")
    fault = _fault(saved[-1]) if saved else None
    if fault is None:
        return saved[-1] if saved else None
    place = next((place for place in range(len(saved) - 2, -1, -1) if _fault(saved[place]) is None), None)
    do = "start a new run"
    if place is not None:
        moves = [("mv", str(path), str(path.with_name(f"broken-{path.name}"))) for path in saved[place + 1 :]]
        words = " && ".join(map(shlex.join, [*moves, ("envgym", "train", str(run), "--resume")]))
        do = f"to continue from {saved[place].name}, run `{words}`"
    raise RunError.of("checkpoint", "be complete", fault, where=str(saved[-1]), do=do)


def require_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint of a training run. Raises: RunError: there is no such run, or it has none."""
    checkpoint = newest_checkpoint(RunDirectory.open(run).path)
    if checkpoint is None:
        do = "name a training run that has saved one, or a model directory"
        raise RunError.of("run", "hold a checkpoint", "none", where=str(run), do=do)
    return checkpoint


def _fault(checkpoint: Path) -> str | None:
    """Return which file of a checkpoint is missing or cut short, and how that showed; None: all can be read."""
    weights = sorted((checkpoint / "model").glob("*.safetensors"))
    descriptions = sorted((checkpoint / "model").glob("*.json"))
    file = checkpoint / _STATE
    try:
        load_state(checkpoint)
        if (checkpoint / SHARDS).is_dir():
            from envgym.trainer.learner.ranks.optimizer_state import check_shards  # heavy, for few runs

            file = checkpoint / SHARDS
            check_shards(file)
            whole = [*checkpoint.glob(_CRITIC)]
        else:
            whole = [checkpoint / _OPTIMIZER, *checkpoint.glob(_CRITIC)]
        for file in whole:
            torch.load(file, weights_only=True, mmap=True)
        for file, size in _part_files(checkpoint):
            if file.stat().st_size != size:
                raise ValueError(f"{file.stat().st_size} bytes of {size}")
        for file in descriptions or (checkpoint / "model" / "config.json",):
            json.loads(file.read_bytes())
        for file in {*weights, *indexed_files(checkpoint / "model")} or (checkpoint / "model" / "model.safetensors",):
            with safe_open(file, framework="pt"):
                pass
    except (*_UNREADABLE, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else re.split(r"\n|\. ", str(error))[0]
        return f"{file.relative_to(checkpoint)}: {reason or type(error).__name__}"
    return None


def load_state(checkpoint: Path) -> TrainState:
    """Read the JSON part of a checkpoint."""
    data = json.loads((checkpoint / _STATE).read_text())
    stats = {(env, index): TaskStats(*values) for env, index, *values in data["stats"]}
    return TrainState(step=data["step"], stats=stats)


def _part_files(checkpoint: Path) -> list[tuple[Path, int]]:
    """Return the files of a checkpoint's parts, each with the size that it was written with, in bytes."""
    parts = json.loads((checkpoint / _STATE).read_text()).get("parts", {})
    return [(checkpoint / _PARTS / name / file, size) for name, sizes in parts.items() for file, size in sizes.items()]


def part_folder(checkpoint: Path, name: str) -> Path:
    """Return where a checkpoint keeps the state of a part."""
    return checkpoint / _PARTS / name


def has_part(checkpoint: Path, name: str) -> bool:
    """Return whether a checkpoint holds the state of a part."""
    return part_folder(checkpoint, name).is_dir()


def load_parts(checkpoint: Path, parts: Mapping[str, Checkpointed]) -> None:
    """Give every part its state back.

    Raises: RunError: the checkpoint was made without one of them, or with another in its place.
    """
    for name, part in parts.items():
        folder = part_folder(checkpoint, name)
        do = "start a new run, or resume with the version that wrote it"
        RunError.unless(folder.is_dir(), "checkpoint", f"hold the state of {name}", "none", where=str(folder), do=do)
        try:
            part.load(folder)
        except (*_UNREADABLE, OSError) as error:
            reason, do = str(error).strip().splitlines()[-1:], "use the checkpoint as it was saved"
            got = reason[0] if reason else type(error).__name__
            must = f"be one that {type(part).__name__} wrote"
            raise RunError.of(f"state of {name}", must, got, where=str(folder), do=do) from error


def save_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Write the state of an optimizer of one process into a folder."""
    torch.save(optimizer.state_dict(), folder / _OPTIMIZER)


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the optimizer's moments back, whatever number of learner ranks wrote them.

    Raises: RunError: they are of another model.
    """
    shards = checkpoint / SHARDS
    whole = checkpoint / _OPTIMIZER
    if not shards.is_dir() and not isinstance(next(model.parameters()), DTensor):
        _load_into(optimizer, whole)
        return
    from envgym.trainer.learner.ranks.optimizer_state import load_shards, load_whole  # heavy, for few runs

    with _telling_of_misfit(shards):
        if shards.is_dir():
            load_shards(shards, model, optimizer)
        else:
            load_whole(torch.load(whole, weights_only=True, mmap=True), optimizer)


def save_critic(folder: Path, critic: Critic) -> None:
    """Write a critic's head and optimizer into a folder."""
    torch.save(critic.state_dict(), folder / _CRITIC)


def load_critic(checkpoint: Path, critic: Critic) -> None:
    """Put the critic and its optimizer back.

    Raises: RunError: the checkpoint was made without one, or with one on another model.
    """
    path = checkpoint / _CRITIC
    RunError.unless(path.exists(), "checkpoint", f"hold {_CRITIC}", "none", where=str(checkpoint), do="start a new run")
    _load_into(critic, path)


def load_value_head(checkpoint: Path, critic: Critic) -> None:
    """Begin with the head of a critic that was kept in a folder; without one there, the critic stays as it is.

    Raises: RunError: it is on a body of another width.
    """
    if (checkpoint / _CRITIC).exists():
        _load_into(critic.head, checkpoint / _CRITIC, part="head")


def _load_into(taker: torch.optim.Optimizer | Critic | nn.Module, path: Path, *, part: str | None = None) -> None:
    with _telling_of_misfit(path):
        state = torch.load(path, weights_only=True)
        taker.load_state_dict(state if part is None else state[part])


@contextmanager
def _telling_of_misfit(path: Path) -> Iterator[None]:
    """Say that a state is of another model, or none at all. Raises: RunError: it is."""
    try:
        yield
    except _UNREADABLE as error:  # what torch says to other shapes and names
        reason = str(error).strip().splitlines()[-1].strip()
        do = "use the checkpoint as it was saved"
        raise RunError.of(path.stem, "fit the model beside it", reason, where=str(path), do=do) from error


OpenReference = Callable[[], AbstractContextManager[nn.Module]]
"""Opens the frozen model for as long as it is scored with."""


def reference_folder(run: Path, step: int) -> Path:
    """Return where a run keeps the reference that is the policy as it was after `step` steps; 0: as it began."""
    return run / (f"reference-{step:06d}" if step else "reference")


def drop_old_references(run: Path) -> None:
    """Delete the references of later steps that no checkpoint can go on with."""
    steps = sorted(int(folder.name.rpartition("-")[2]) for folder in run.glob("reference-*[0-9]"))
    oldest = min((load_state(checkpoint).step for checkpoint in checkpoints(run / "checkpoints")), default=0)
    for step in [step for step in steps if step <= oldest][:-1]:
        shutil.rmtree(reference_folder(run, step))


def keep_reference(model: Any, folder: Path) -> None:  # PreTrainedModel or PeftModel
    """Write the model as it is now, unless a reference is there already."""
    if not folder.exists():
        save_model(model, folder)


def open_reference(model: Any, folder: Path, device: torch.device) -> OpenReference:  # as above
    """Load what `keep_reference` wrote: a second adapter where the model has adapters, else a second model."""
    if hasattr(model, "peft_config"):
        return _second_adapter(model, folder)
    frozen = type(model).from_pretrained(folder, dtype=model.dtype, use_safetensors=True)
    if lm_head_of(model).is_float32:
        widen_head(frozen)
    frozen.to(device).eval().requires_grad_(False)

    @contextmanager
    def second_model() -> Iterator[nn.Module]:
        yield frozen

    return second_model


def _second_adapter(model: Any, folder: Path) -> OpenReference:  # PeftModel
    name = folder.name
    if name not in model.peft_config:
        model.load_adapter(str(folder), adapter_name=name, is_trainable=False)

    @contextmanager
    def second_adapter() -> Iterator[nn.Module]:
        trained = model.active_adapter
        model.set_adapter(name)
        try:
            yield model
        finally:
            model.set_adapter(trained)

    return second_adapter
