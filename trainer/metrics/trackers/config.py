"""The settings of a run as a tracker may have them: without secrets."""

import re
from collections.abc import Mapping
from typing import Any, Final

MASK: Final = "***"
"""Replaces a secret."""
_SECRET_KEY: Final = re.compile(
    r"(^|[-_.])(api[-_]?key|access[-_]?key|secret[-_]?key|private[-_]?key|token|password|passwd|secret|credentials?"
    r"|authorization|cookie)$",
    re.IGNORECASE,
)
_SECRETS_IN_TEXT: Final = (
    re.compile(r"(?<=://)[^/\s@]+(?=@)"),  # user and password of a URL
    re.compile(r"(?<=[?&])[\w-]*(?:key|token|password|secret)=[^&\s]+", re.IGNORECASE),  # its query
    re.compile(r"\b(?:sk-[\w-]{16,}|hf_\w{16,}|gh[opsur]_\w{16,})"),  # keys that can be told by their form
    re.compile(r"(?<=Bearer )\S+", re.IGNORECASE),
)


def masked(value: Any) -> Any:  # a JSON tree
    """Return settings with every secret replaced by `***`.

    Secrets are texts under a key such as `api_key`, `token` or `password`, credentials in a URL, and keys that can be
    recognized by their form. The name of an environment variable (`api_key_env`) is no secret.
    """
    if isinstance(value, Mapping):
        return {
            key: MASK if isinstance(item, str) and _SECRET_KEY.search(str(key)) else masked(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    if isinstance(value, str):
        for pattern in _SECRETS_IN_TEXT:
            value = pattern.sub(MASK, value)
    return value
