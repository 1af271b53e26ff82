"""The reward files that the tests of a task write: `reward.json`, a mapping of numbers, or `reward.txt`, one number."""

import math
from collections.abc import Mapping

from envgym.core.json_types import parse_json
from envgym.core.turns import Ending, Invalid, Reward, Scored
from envgym.envs.code._harbor_folder import Files

JSON, TEXT = "reward.json", "reward.txt"
KEY = "reward"
"""The entry of `reward.json` that is the reward; the others are components."""
MAX_PARTS = 1000
MAX_BYTES = 65536


def read_reward(written: Files, tests: Files, *, where: str) -> Reward:
    """Return the reward that the tests wrote; Invalid if there is none, or if it is no finite number.

    A file that no file of the tests names is not theirs, and is not read. Of two that are, `reward.json` counts.

    Args:
        written: what is in the directory of the reward files.
        tests: the files of the tests.
        where: the task, for the reason.
    """
    named = [name for name in (JSON, TEXT) if name in written and is_named(name, tests)]
    if not named:
        return _invalid(f"The tests of {where} wrote no {TEXT} and no {JSON}")
    name = named[0]
    content = written[name]
    if not content.strip() or len(content) > MAX_BYTES:
        return _invalid(f"The file {name} of {where} must have 1 to {MAX_BYTES} bytes")
    try:
        values = _read_json(content) if name == JSON else {KEY: float(content.decode())}
    except ValueError as error:
        kind = "a mapping of numbers" if name == JSON else "a number"
        return _invalid(f"The file {name} of {where} must hold {kind}: {error}")
    infinite = [key for key, value in values.items() if not math.isfinite(value)]
    if infinite:
        return _invalid(f"The entry {infinite[0]} in {name} of {where} must be finite, got {values[infinite[0]]}")
    if KEY not in values and len(values) != 1:
        return _invalid(f"The file {name} of {where} must have an entry {KEY}, got {', '.join(values) or 'no entry'}")
    value = values[KEY] if KEY in values else next(iter(values.values()))
    return Scored(value=value, components={} if name == TEXT else values)


def is_named(name: str, tests: Files) -> bool:
    """Return whether a file of the tests names a reward file."""
    return any(name.encode() in content for content in tests.values())


def _read_json(content: bytes) -> Mapping[str, float]:
    """Return the numbers of a mapping. Raises: ValueError: it is none."""
    data = parse_json(content, MAX_PARTS)
    if not isinstance(data, dict):
        raise ValueError("it is no mapping")
    values: dict[str, float] = {}
    for key, value in data.items():
        if not isinstance(value, int | float):
            raise ValueError(f"{key} is no number")
        try:
            values[key] = float(value)
        except OverflowError:
            values[key] = math.inf
    return values


def _invalid(reason: str) -> Invalid:
    return Invalid(cause=Ending.ERROR_ENV, reason=f"{reason}.")
