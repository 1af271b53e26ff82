"""Write a trained model as a folder for the Hub: weights, card with the evaluations of its run, curve, provenance."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from envgym.config.masking import MASK, masked
from envgym.config.settings import read_yaml_value
from envgym.core.tasks import Split
from envgym.errors import SettingsError
from envgym.export.card import licence_head, write_card
from envgym.export.curve import CurvePoint, draw_curve
from envgym.export.dataset import new_folder
from envgym.export.provenance import PROVENANCE, provenance, public_env_id
from envgym.report.data import EvaluationData
from envgym.report.from_run import evaluation_data
from envgym.runs.best import BestCheckpoint, read_best
from envgym.runs.changes import leaves_of
from envgym.runs.directory import RunDirectory, reading
from envgym.runs.files import write_atomic, write_json

Form = Literal["full", "merged", "adapter"]
"""All weights as trained; adapters merged into the weights of the base model; or the adapters alone."""
Json = dict[str, Any]
_CURVE: Final = "curve.png"
_RELATIONS: Final[Mapping[Form, str]] = {"full": "finetune", "merged": "finetune", "adapter": "adapter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Which model of a run is exported."""

    checkpoint: str
    """Name of the checkpoint, such as `step-000040`."""
    step: int
    """Train steps that made it."""
    form: Form
    base: str | None
    """Name of the base model on the Hub; None: it is not known, or the model began with random weights."""
    licence: str | None
    """Of the base model, in the Hub's form; None: it is not known."""


class EnvEvaluation(NamedTuple):
    """One evaluation of the run, with the environment that it was made on."""

    env_id: str
    data: EvaluationData


def export_model(
    run: RunDirectory, out: Path, source: ModelSource, write_weights: Callable[[Path], Mapping[str, Any]]
) -> Json:
    """Write the folder, and return what it holds, as JSON.

    Args:
        run: a training run.
        out: new or empty folder.
        source: the exported model.
        write_weights: writes weights, configuration and tokenizer into a folder, and returns JSON values for
            `provenance.json`.

    Raises: InvalidInput: `out` is not empty. RunError: the run cannot be read. Whatever `write_weights` raises.
    """
    evaluations = evaluations_of(run)
    with new_folder(out) as draft:
        details = write_weights(draft)
        record = provenance(
            run,
            "model",
            model=source.base,
            checkpoint=source.checkpoint,
            step=source.step,
            form=source.form,
            base_licence=source.licence,
            **details,
        )
        curve = curve_points(evaluations)
        if len(curve) > 1:
            write_atomic(draft / _CURVE, draw_curve(curve))
        write_json(draft / PROVENANCE, record)
        write_atomic(draft / "README.md", model_card(run, source, evaluations, record))
        for file in draft.iterdir():
            file.chmod(0o644)  # safetensors writes files that only their owner reads
    return {
        "folder": str(out),
        "kind": "model",
        "form": source.form,
        "checkpoint": source.checkpoint,
        "base_model": source.base,
        "licence": source.licence,
        "evaluations": len(evaluations_at(evaluations, source.step)),
    }


# ---- evaluations -----------------------------------------------------------------------------------------------------


def evaluations_of(run: RunDirectory) -> list[EnvEvaluation]:
    """Return the evaluations of a run, by step and label. Raises: RunError: one cannot be read."""
    with reading(str(run.path / "evals")):
        records = sorted(run.evals(), key=lambda data: (data["step"], data["label"]))
        return [EnvEvaluation(public_env_id(data["env_id"]), evaluation_data(data)) for data in records]


def evaluations_at(evaluations: Sequence[EnvEvaluation], step: int) -> list[EnvEvaluation]:
    """Return the evaluations after `step` train steps."""
    return [evaluation for evaluation in evaluations if evaluation.data.step == step]


def curve_points(evaluations: Sequence[EnvEvaluation]) -> list[CurvePoint]:
    """Return success over the steps for the label with the most evaluations that have a valid sample."""
    curves: dict[str, list[CurvePoint]] = {}
    for _, data in evaluations:
        if (valid := data.success.valid) is not None:
            point = CurvePoint(data.step, valid.value, valid.interval.low, valid.interval.high)
            curves.setdefault(data.label, []).append(point)
    return max(curves.values(), key=len, default=[])


def model_index(name: str, evaluations: Sequence[EnvEvaluation]) -> list[Json]:
    """Return the evaluations in the form that the Hub reads; one without a valid sample has no result.

    The interval of a success rate stands in `args` of its metric.
    """
    results = [_result(*evaluation) for evaluation in evaluations if evaluation.data.success.valid is not None]
    return [{"name": name, "results": results}] if results else []


def _result(env_id: str, data: EvaluationData) -> Json:
    valid = data.success.valid
    assert valid is not None, "only evaluations with a valid sample have a result"
    args = {
        "interval_low": round(valid.interval.low, 4),
        "interval_high": round(valid.interval.high, 4),
        "interval_level": valid.interval.level,
        "tasks": valid.num_tasks,
        "samples": valid.num_samples,
        "invalid": data.success.num_invalid,
    }
    return {
        "task": {"type": "text-generation", "name": "tasks of an environment"},
        "dataset": {"type": env_id, "name": f"{env_id}, {data.label}"},
        "metrics": [{"type": "success_rate", "name": "success rate", "value": round(valid.value, 4), "args": args}],
    }


# ---- card ------------------------------------------------------------------------------------------------------------


def model_card(
    run: RunDirectory, source: ModelSource, evaluations: Sequence[EnvEvaluation], record: Mapping[str, Any]
) -> str:
    """Return the README.md of a model, whose YAML head the Hub reads.

    Args:
        run: that trained it.
        source: the exported model.
        evaluations: all of the run.
        record: the provenance.
    """
    config = run.config
    at_step = evaluations_at(evaluations, source.step)
    table_rows = [*(evaluations_at(evaluations, 0) if source.step else []), *at_step]
    head = {
        **licence_head([source.licence]),
        "base_model": source.base,
        "base_model_relation": None if source.base is None else _RELATIONS[source.form],
        "library_name": "peft" if source.form == "adapter" else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["envgym", "reinforcement-learning"],
        "model-index": model_index(run.name, at_step),
    }
    values = {
        "title": run.name,
        "source": source,
        "envs": record["envs"],
        "rows": [_row(*evaluation) for evaluation in table_rows],
        "has_result": bool(at_step),
        "is_held_out": config.get("evaluation", {}).get("split", Split.TEST) == Split.TEST,
        "is_from_random": config.get("model", {}).get("name") == "tiny",
        "chosen_by": _chosen_by(read_best(run.path), source.step),
        "curve": _CURVE if len(curve_points(evaluations)) > 1 else "",
        "recipe": list(_recipe(config)),
        "command": (command := evaluation_command(config, [evaluation.data for evaluation in at_step])),
        "has_masked": MASK in command,
        "has_other_settings": len(config["envs"]) > 1 and any(env.get("settings") for env in config["envs"]),
        "agent": config.get("agent", {}).get("name", ""),
    }
    return write_card("model_card.md.jinja", values, head)


def _row(env_id: str, data: EvaluationData) -> Json:
    valid, success = data.success.valid, "none is valid"
    if valid is not None:
        success = valid.percent
    num_invalid, num_samples = data.success.num_invalid, data.success.num_samples
    return {
        "env": env_id,
        "label": data.label,
        "step": data.step,
        "success": success,
        "tasks": len(data.tasks),
        "episodes": num_samples,
        "invalid": num_invalid,
    }


def _chosen_by(best: BestCheckpoint | None, step: int) -> str:
    """Return the metric that the checkpoint was chosen by; empty where it was not chosen."""
    return best.metric if best is not None and best.step == step else ""


_RECIPE_KEYS: Final = (
    ("recipe", "recipe"),
    ("run.steps", "train steps of the run"),
    ("run.seed", "seed"),
    ("agent.name", "agent"),
    ("agent.max_turn_tokens", "tokens of a turn, at most"),
    ("agent.max_context_tokens", "tokens of a context, at most"),
    ("search.name", "search"),
    ("credit.name", "credit"),
    ("loss.name", "loss"),
    ("objective.kl_coef", "KL coefficient"),
    ("rollout.groups", "groups of a step"),
    ("rollout.group_size", "episodes of a group"),
    ("optim.lr", "learning rate"),
    ("model.precision", "precision"),
    ("model.lora.rank", "rank of the adapters"),
    ("model.lora.alpha", "alpha of the adapters"),
    ("sft.episodes", "demonstrations of the warm start"),
)
"""Setting -> how a card names it; none of them holds a path."""


def _recipe(config: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    values = leaves_of(config)
    yield from ((name, values[key]) for key, name in _RECIPE_KEYS if values.get(key) not in (None, ""))


def evaluation_command(config: Mapping[str, Any], at: Sequence[EvaluationData] = (), folder: str = "FOLDER") -> str:
    """Return the command that evaluates an exported folder with the environments, agent and search of its run.

    Secrets are masked, and paths of the machine that trained are shortened to their names.

    Args:
        config: settings of the run.
        at: its evaluations of the exported model, one for each environment. Their number of tasks can be smaller than
            that of the settings.
        folder: name of the exported folder.
    """
    words = ["envgym", "eval", "--model", folder]
    envs = config.get("envs", ())
    for env in envs:
        words += ["--env", public_env_id(env["id"])]
    if len(envs) == 1:  # `--env-set` is of all
        words += _set_words("--env-set", envs[0].get("settings", {}))
    agent, search = dict(config.get("agent", {})), dict(config.get("evaluation", {}).get("search") or {})
    words += ["--agent", portable(agent.pop("name", "tool_calling")), *_set_words("--agent-set", agent)]
    if search.get("name", "chain") != "chain":
        words += ["--search", portable(search.pop("name")), *_set_words("--search-set", search)]
    if (precision := config.get("model", {}).get("precision", "auto")) != "auto":
        words += ["--precision", precision]
    evaluation = {**config.get("evaluation", {}), "seed": config.get("run", {}).get("seed", 0)}
    if numbers := {len(data.tasks) for data in at}:
        evaluation["tasks"] = max(numbers)
    for name, default in _EVALUATION_OPTIONS.items():
        words += [f"--{name.replace('_', '-')}", str(evaluation.get(name, default))]
    return shlex.join(words)


_EVALUATION_OPTIONS: Final[Mapping[str, object]] = MappingProxyType({
    "split": Split.TEST, "tasks": 100, "samples": 1, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "success_at": 1.0,
    "seed": 0,
})  # fmt: skip
"""Option of `envgym eval` -> the value where the settings of a run have none."""


def _set_words(option: str, settings: Mapping[str, Any]) -> list[str]:
    values = leaves_of(_portable_tree(masked(settings)))
    pairs = [f"{key}={_yaml(value)}" for key, value in values.items() if value is not None]
    return [word for pair in pairs for word in (option, pair)]


def _yaml(value: Any) -> str:  # a JSON value
    """Return a value as `KEY=VALUE` takes it; a text that YAML would read as something else gets quotes."""
    if isinstance(value, str):
        with suppress(SettingsError):
            if read_yaml_value(value, where="model card") == value:
                return value
    return json.dumps(value, ensure_ascii=False)


def _portable_tree(value: Any) -> Any:  # a JSON tree
    if isinstance(value, Mapping):
        return {key: _portable_tree(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_portable_tree(part) for part in value]
    return portable(value) if isinstance(value, str) else value


def portable(text: str) -> str:
    """Return the name of the file or folder that an absolute path leads to; another text as it is.

    A path of another machine has no blanks and at least one folder above it.
    """
    path = PurePath(text)
    is_path = path.is_absolute() and (os.path.exists(text) or (len(path.parts) > 2 and not re.search(r"\s", text)))
    return path.name if is_path else text
