"""Run directories of older schemas, brought to the newest form as they are read. Only this module knows old names."""

from collections.abc import Callable, Mapping
from typing import Any, Final

Config = dict[str, Any]
"""The settings of a run as plain data."""

METRIC_PREFIXES: Final[Mapping[str, str]] = {
    "drift/rewritten_": "context_rewrites/",
    "drift/": "context_rewrites/",
    "gap/": "logprob_gap/",
}
"""Beginning of a metric's old name -> of its new one; the longest that fits counts."""


_CRITIC_PATH: Final = "envgym.trainer.value_fn:critic"


def migrate_config(config: Mapping[str, Any], *, schema: int) -> Config:
    """Return the settings that a run of schema `schema` was started with, in today's sections."""
    migrated = _copy(config)
    for version, migrate in _CONFIG_STEPS:
        if schema < version:
            migrate(migrated)
    return migrated


def migrate_metrics(row: Mapping[str, Any], *, schema: int) -> dict[str, Any]:
    """Return a step's metrics under today's names."""
    return dict(row) if schema >= 2 else {_metric_name(name): value for name, value in row.items()}


def _metric_name(name: str) -> str:
    fitting = [prefix for prefix in METRIC_PREFIXES if name.startswith(prefix)]
    if not fitting:
        return name
    prefix = max(fitting, key=len)
    return METRIC_PREFIXES[prefix] + name.removeprefix(prefix)


# ---- schema 2: one description of training runs and evaluations -----------------------------------------------------


def _migrate_to_2(config: Config) -> None:
    """Sections `engine` and `sampling`; `rollout` with what was `collect`; sources of a warm start's demonstrations."""
    engine = {**config.pop("policy", {}), **config.pop("engine", {})}
    model, rollout = config.get("model", {}), config.get("rollout", {})
    _move(model, engine, "device", "threads", "endpoint")
    _move(rollout, engine, "concurrency", "max_batch")
    if engine.get("endpoint") is not None:
        engine["backend"] = "vllm_server" if engine.get("backend") == "vllm" else "openai"
    _rename(model, "steps", "train_steps")
    if engine:
        config["engine"] = engine
    if "rollout" in config or "collect" in config:
        _migrate_training(config, rollout)
    elif "search" in config:  # an evaluation
        _migrate_search(config["search"])
        config.setdefault("evaluation", {})["search"] = config.pop("search")


def _migrate_training(config: Config, rollout: Config) -> None:
    _migrate_trackers(config.setdefault("run", {}))
    if "temperature" in rollout:
        config["sampling"] = {"temperature": rollout.pop("temperature")}
    collect = config.pop("collect", {})
    _rename(collect, "enough", "min_finished_share")
    config["rollout"] = {**rollout, **collect}
    if config.get("sft"):
        config["sft"] = _migrate_sft(config["sft"])
    _migrate_objective(config.get("objective", {}))
    _migrate_search(config.get("search", {}))


def _migrate_objective(objective: Config) -> None:
    _rename(objective, "kl", "kl_estimator")
    for name in ("kl_estimator", "aggregation"):
        if name in objective:
            objective[name] = {"name": objective[name]}
    max_tokens = objective.pop("max_tokens", None)
    if max_tokens is not None and objective["aggregation"]["name"] == "seq-mean-token-sum-norm":
        objective["aggregation"]["max_tokens"] = max_tokens


def _migrate_search(search: Config) -> None:
    """Answer scorers and values are choices; a path with a colon was a value, whose text stood after another colon."""
    if search.get("name") == "best_of":
        _rename(search, "width", "parallel")
    if search.get("select") == "verifier":
        search["select"] = "reward"
    select = search.get("select")
    if isinstance(select, str) and ":" in select:  # a value chose the answer
        search["select"], search["value"] = "value", select
    for name in ("select", "value"):
        if isinstance(search.get(name), str):
            search[name] = _migrate_value(search[name])


def _migrate_value(value: str) -> Config:
    path, _, text = value.removeprefix(f"{_CRITIC_PATH}:").partition(":")
    if value.startswith(f"{_CRITIC_PATH}:"):
        return {"name": "critic", "run": f"{path}:{text}" if text else path}
    return {"name": value}


def _migrate_trackers(run: Config) -> None:
    has_tensorboard, project = run.pop("tensorboard", True), run.pop("wandb", None)
    run["trackers"] = [{"name": "progress"}]
    run["trackers"] += [{"name": "tensorboard"}] if has_tensorboard else []
    run["trackers"] += [{"name": "wandb", "project": project}] if project else []


def _migrate_sft(sft: Config) -> Config:
    share, episodes = sft.pop("gives_up", 0.0), sft.pop("gives_up_episodes", 512)
    text, directory = sft.pop("gives_up_saying", "I do not know."), sft.pop("recorded", None)
    if share:
        shared = {name: sft[name] for name in ("batch_size", "lr", "warmup_share") if name in sft}
        source = {"name": "examples/giving_up.py:GivingUp", "share": share, "text": text}
        sft["next"] = {"source": source, "episodes": episodes, **shared}
    if directory is not None:
        sft["source"] = {"name": "recorded", "directory": directory}
    return sft


# ---- schema 4: one setting of number types ----------------------------------------------------------------------------


def _migrate_to_4(config: Config) -> None:
    """`model.precision` instead of `dtype` and `autocast`, and `eps` as a setting of the optimizer; nothing changes."""
    if "model" in config:
        model = config["model"]
        dtype, autocast = model.pop("dtype", "float32"), model.pop("autocast", "none")
        model["precision"] = "mixed" if (dtype, autocast) == ("float32", "bfloat16") else dtype
    if "eps" in config.get("optim", {}):
        optim = config["optim"]
        eps = optim.pop("eps")
        optim["optimizer"] = {"name": "adamw", **({} if eps == 1e-8 else {"eps": eps})}


_CONFIG_STEPS: Final[tuple[tuple[int, Callable[[Config], None]], ...]] = ((2, _migrate_to_2), (4, _migrate_to_4))
"""(schema, what brings a config of the one before to it)."""


def _move(source: Config, target: Config, *names: str) -> None:
    for name in names:
        if name in source:
            target[name] = source.pop(name)


def _rename(section: Config, old: str, new: str) -> None:
    if old in section:
        section[new] = section.pop(old)


def _copy(value: Mapping[str, Any]) -> Config:
    return {name: _copy(item) if isinstance(item, Mapping) else item for name, item in value.items()}
