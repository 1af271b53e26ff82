"""The settings of a run that goes on, beside those that it was started with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envgym.errors import RunError

_ABSENT = object()


def check_same(theirs: Mapping[str, Any], ours: Mapping[str, Any], *, where: Path, but: Sequence[str] = ()) -> None:
    """See that a run is resumed with its own settings.

    Args:
        theirs: settings that it was started with, as plain data.
        ours: settings of now.
        where: the run directory.
        but: dotted keys that may differ.

    Raises: RunError: others differ.
    """
    changed = changed_keys(theirs, ours)
    fixed = [key for key in changed if not any(f"{key}.".startswith(f"{free}.") for free in but)]
    if fixed:
        may = ", ".join(key for key in but if key != "run.directory")
        do = f"resume with its own, or start another run{f'; only {may} may change' if may else ''}"
        raise RunError.of("resumed settings", "be those of the run", f"changes in {fixed}", where=str(where), do=do)


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that two settings trees differ in."""
    old, new = leaves_of(before), leaves_of(now)
    return sorted(key for key in {*old, *new} if old.get(key, _ABSENT) != new.get(key, _ABSENT))


def leaves_of(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a settings tree as dotted keys; a list is one value."""
    leaves: dict[str, Any] = {}
    for key, value in data.items():
        leaves.update(
            leaves_of(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
        )
    return leaves
