"""The reference of a run: the model of that name, which a KL term reads and a controller may reset."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from envgym.errors import RunError, SettingsError
from envgym.trainer.learner.checkpoint import OpenReference, reference_folder
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.methods.losses.kl_reference import REFERENCE
from envgym.trainer.models.frozen import FrozenModel, SnapshotModel, check_packs


def begin_models(models: Mapping[str, Model], run: Path, *, reference_step: int) -> None:
    """Let the named models take up the policy as it is now, or what they kept in the directory `run` before.

    Raises: RunError: the reference was reset after `reference_step` steps, and is not there.
    """
    folder = reference_folder(run, reference_step)
    if reference_step and not folder.exists():
        do = "restore it, or start a new run"
        raise RunError.of("reference", "be kept in the run directory", "none", where=str(folder), do=do)
    for name, model in models.items():
        model.begin(folder if name == REFERENCE else run / "models" / name)


def reference_of(models: Mapping[str, Model], policy: ForwardPass) -> OpenReference:
    """Return the function that opens the reference, which reads the rows in the packs of the policy.

    Raises: SettingsError: the model has no module that a KL term can read, or one that would misread packs.
    """
    reference = models.get(REFERENCE)
    if isinstance(reference, FrozenModel):
        check_packs(reference, policy, where=f"models.{REFERENCE}")
        return reference.open
    got, do = type(reference).__name__, "make it local or snapshot, or leave it out"
    if reference is None:  # a controller has begun a KL term that it had not planned
        got, do = "none", "begin the run with objective.kl_coef above 0, or let the controller plan it"
    rule = "be a frozen model of this process for a KL term"
    raise SettingsError.of(f"model {REFERENCE}", rule, got, where="models", do=do)


def reset_reference(models: Mapping[str, Model], run: Path, step: int) -> None:
    """Make the policy as it is now, after `step` steps, the reference of the run in the directory `run`.

    Raises: SettingsError: the reference is no snapshot of the policy, or there is none.
    """
    reference = models.get(REFERENCE)
    if not isinstance(reference, SnapshotModel):
        rule, do = "be a snapshot of the policy", "set objective.kl_coef, and leave models.reference out"
        got = "none" if reference is None else type(reference).__name__
        raise SettingsError.of("reference that is reset", rule, got, where="controllers", do=do)
    place = reference_folder(run, step)
    shutil.rmtree(place, ignore_errors=True)  # of a run that was killed
    reference.reset(place)
