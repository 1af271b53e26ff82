"""TOML files beside the environments: tables of values, and the wordings of requests."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ENVS = Path(__file__).parent


def read_toml(path: str | Path) -> dict[str, Any]:  # Any: decoded TOML, our own file
    """Read a TOML file; a relative path begins at the folder of all environments."""
    return tomllib.loads((_ENVS / path).read_text(encoding="utf-8"))


class Wordings:
    """The wordings of requests: templates of `str.format` in a TOML file, by the name of the request."""

    def __init__(self, path: str) -> None:
        """Read the templates; a name in braces stands for a value."""
        self._templates: Mapping[str, Sequence[str]] = read_toml(path)

    def __call__(self, name: str, /, **values: object) -> tuple[str, ...]:
        """Return all wordings of a request with its values."""
        return tuple(template.format(**values) for template in self._templates[name])
