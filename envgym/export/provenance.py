"""Where an export comes from: `provenance.json`, which data sets and models share."""

from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path, PurePath
from typing import Any, Final

from envgym.config.masking import masked
from envgym.core.json_types import content_hash
from envgym.core.version import __version__
from envgym.errors import UnknownName
from envgym.registry import find
from envgym.runs.directory import RunDirectory

PROVENANCE: Final = "provenance.json"
"""Name of the file in an exported folder."""
_SCHEMA: Final = 1


def provenance(run: RunDirectory, kind: str, *, env_ids: Iterable[str] | None = None, **details: Any) -> dict[str, Any]:
    """Return the identity of the source of an export, as JSON.

    Args:
        run: the exported run.
        kind: what was exported, as in `envgym export RUN KIND OUT`.
        env_ids: environments that the export was made with; None: those of the run's settings.
        details: JSON values that only this kind has.
    """
    config = run.config
    ids = [env["id"] for env in config.get("envs", ())] if env_ids is None else env_ids
    return {
        "schema": _SCHEMA,
        "kind": kind,
        "envgym": __version__,
        "run": {"id": run.id, "name": run.name, "versions": run.versions},
        "settings_sha256": content_hash(config),
        "model": _public_name(config.get("model", {}).get("name")),
        "recipe": config.get("recipe") or None,
        "seed": config.get("run", {}).get("seed"),
        "envs": [{"id": public_env_id(env_id), "licence": env_licence(env_id)} for env_id in dict.fromkeys(ids)],
        **details,
    }


@lru_cache
def public_env_id(env_id: str) -> str:
    """Return the id of an environment without secrets; of one in a file, the name of the file without its folders."""
    public: str = masked(env_id)
    return PurePath(public).name if ".py:" in public or PurePath(public).is_absolute() else public


def _public_name(model: str | None) -> str | None:
    """Return the name of a model; of a path, which others do not have, its last part."""
    is_path = model is not None and (model.count("/") > 1 or model.startswith(("/", ".", "~")) or Path(model).exists())
    return Path(model).name if model is not None and is_path else model


def env_licence(env_id: str) -> str | None:
    """Return the licence of the package that brings a registered environment; None: it is not known.

    The tasks of an environment can come from further packages with licences of their own.
    """
    try:
        origin = find(env_id).origin
        return _licence(metadata(origin))
    except (UnknownName, PackageNotFoundError):
        return None


def _licence(fields: PackageMetadata) -> str | None:
    texts = [text for name in ("License-Expression", "License") for text in fields.get_all(name, [])]
    return next((text for text in texts if "\n" not in text), None)
