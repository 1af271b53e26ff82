"""`envgym export RUN model OUT`: a checkpoint of a training run as a Hugging Face directory."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envgym.cli.common import add_trust_argument
from envgym.errors import InvalidInput, RunError, check_known

if TYPE_CHECKING:
    from envgym.agents.settings import ModelSettings

MODEL_OPTIONS: Final = ("checkpoint", "adapter", "base", "license", "trust")
_WHERE: Final = "envgym export RUN model"


def add_model_arguments(group: "argparse._ArgumentGroup") -> None:
    """Add the arguments of the kind `model`."""
    text = "last (default), best (of run.keep_best), a number of train steps, or a name such as step-000040"
    group.add_argument("--checkpoint", metavar="NAME", help=text)
    text = "keep LoRA adapters as they are (default: merge them into the weights of the base model)"
    group.add_argument("--adapter", action="store_true", help=text)
    group.add_argument("--base", metavar="OWNER/NAME", help="name of the base model on the Hub, if it was a directory")
    group.add_argument("--license", metavar="ID", help="licence of the base model, such as apache-2.0")
    add_trust_argument(group)


def export_model_command(args: argparse.Namespace) -> Mapping[str, Any]:
    """Write the folder, and return what it holds. Raises: RunError, InvalidInput: as `export_model`, or bad options."""
    from envgym.agents.models.export import base_model, copy_model, write_adapter, write_merged
    from envgym.export.model import ModelSource, export_model
    from envgym.runs.directory import RunDirectory, file_step
    from envgym.trainer.settings import settings_of_run

    run = RunDirectory.open(args.run, trusted=args.trust)
    checkpoint = chosen_checkpoint(run.path, args.checkpoint or "last")
    settings = settings_of_run(run, "model").model
    weights = checkpoint / "model"
    has_adapter = (weights / "adapter_config.json").is_file()
    do = "leave out --adapter"
    holds = has_adapter or not args.adapter
    RunError.unless(holds, "checkpoint", "hold LoRA adapters", "all weights", where=f"{_WHERE} --adapter", do=do)
    base, licence = base_model(settings.name, base=args.base, licence=args.license)

    def write_weights(folder: Path) -> Mapping[str, Any]:
        if not has_adapter:
            copy_model(weights, folder)
            return {}
        if args.adapter:
            write_adapter(weights, folder, base=_known_base(base, settings))
            return {}
        adapted = settings.model_copy(update={"adapter": str(weights), "lora": None})
        return {"merged_logits_difference": write_merged(adapted, folder)}

    if args.adapter:
        _known_base(base, settings)
    source = ModelSource(
        checkpoint=checkpoint.name,
        step=file_step(checkpoint),
        form="adapter" if args.adapter else "merged" if has_adapter else "full",
        base=base,
        licence=licence,
    )
    return export_model(run, args.out, source, write_weights)


def chosen_checkpoint(run: Path, name: str) -> Path:
    """Return a checkpoint of a run.

    Args:
        run: a training run.
        name: `last`, `best`, a number of train steps, or a name such as `step-000040`.

    Raises: RunError: the run has no checkpoint, or none that is called best. UnknownName: it has no such checkpoint.
    """
    from envgym.runs.best import read_best
    from envgym.trainer.learner.checkpoint import checkpoint_of_step, checkpoints, require_checkpoint

    newest = require_checkpoint(run)
    if name == "last":
        return newest
    best = read_best(run)
    if name == "best" and best is None:
        do = "name a checkpoint, or train with run.keep_best"
        raise RunError.of("run", "name its best checkpoint", "none", where=f"{_WHERE} --checkpoint best", do=do)
    if best is not None and name == "best":
        name = checkpoint_of_step(run, best.step).name
    elif name.isascii() and name.isdecimal():
        name = checkpoint_of_step(run, int(name)).name
    saved = {path.name: path for path in checkpoints(run / "checkpoints")}
    check_known("checkpoint", name, saved, where=f"{_WHERE} --checkpoint")
    return saved[name]


def _known_base(base: str | None, settings: "ModelSettings") -> str:
    if base is None:
        must, do = "be known by its name on the Hub", "add --base OWNER/NAME, or merge the adapters"
        raise InvalidInput.of("base model", must, settings.name, where=f"{_WHERE} --adapter", do=do)
    return base
