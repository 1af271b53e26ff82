"""The settings of a run as others may have them: without secrets."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

MASK: Final = "***"
"""Replaces a secret."""
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""Of a name: in `camelCase`, or with other signs between them."""
_SECRET_WORDS: Final = frozenset({
    "apikey", "auth", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "passphrase",
    "passwd", "password", "passwords", "pat", "secret", "secrets", "token",
})  # fmt: skip
_KEY_OWNERS: Final = frozenset(
    {"access", "account", "api", "auth", "encryption", "private", "secret", "signing", "ssh"}
)
_TOKEN_OWNERS: Final = frozenset({"access", "api", "auth", "bearer", "refresh", "secret", "session"})
_SECRET_MAPPINGS: Final = frozenset({"env", "environment", "headers"})
"""Keys of mappings whose values are all masked: programs get secrets in them."""
_FLAG: Final = re.compile(r"--?[A-Za-z][\w.-]*")
_VALUE: Final = r"""(?:"[^"]*"|'[^']*'|[^\s&"',;]+)"""
_ASSIGNED: Final = re.compile(rf"""(?P<name>[\w.-]+)(?P<sign>=|["']\s*:\s*)(?P<value>{_VALUE})""")
_FLAG_IN_TEXT: Final = re.compile(rf"(?<!\S)(?P<name>{_FLAG.pattern})(?P<sign>\s+)(?P<value>(?!-){_VALUE})")
_USER_OF_URL: Final = re.compile(r"""(?P<scheme>[A-Za-z][\w+.-]*)://(?:[^\s"'@/:]*:(?!\d+[/?#])[^\s"']*|[^\s"'@/]+)@""")
_AT_SCHEMES: Final = frozenset({"inspect"})
"""Schemes of environments in which `@` separates other parts."""
_SECRET_FORMS: Final = re.compile(
    r"(?<=Bearer )\S+|\b(?:sk-[\w-]{16,}|hf_\w{16,}|gh[opsur]_\w{16,}|github_pat_\w+|glpat-[\w-]+|xox[a-z]-[\w-]+"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]+\.[\w-]+\.[\w-]+)"
)


def masked(value: Any) -> Any:  # a JSON tree
    """Return settings with every secret replaced by `***`.

    Secrets are what stands under a key such as `api_key`, `accessToken` or `password`, after an option such as
    `--api-key`, or in a mapping `env` or `headers`; the user of a URL; and keys that can be recognized by their form.
    The name of an environment variable (`api_key_env`) and a number of tokens (`max_tokens`) are no secrets.
    """
    if isinstance(value, Mapping):
        return {key: _under_key(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(_entries(value))
    return _text(value) if isinstance(value, str) else value


def _under_key(key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if _is_secret(key) or (key == "tokens" and not isinstance(value, int | float)):
        return MASK
    if key in _SECRET_MAPPINGS and isinstance(value, Mapping):
        return {name: None if item is None else MASK for name, item in value.items()}
    return masked(value)


def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    last, owner = (words or [""])[-1], (words[-2:-1] or [""])[0]
    return (
        last in _SECRET_WORDS
        or (last in ("key", "keys") and owner in _KEY_OWNERS)
        or (last == "tokens" and owner in _TOKEN_OWNERS)
    )


def _is_secret_option(name: str) -> bool:
    return _is_secret(name) or (name.startswith("-") and _WORDS.findall(name)[-1:] == ["key"])


def _entries(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the entries of a list, which may be words of a command, an option's value after its name."""
    before = None
    for value in values:
        is_word = isinstance(value, str) and not value.startswith("--")
        follows = isinstance(before, str) and _FLAG.fullmatch(before) and _is_secret_option(before)
        yield MASK if is_word and follows else masked(value)
        before = value


def _text(text: str) -> str:
    text = _USER_OF_URL.sub(lambda url: url[0] if url["scheme"] in _AT_SCHEMES else f"{url['scheme']}://{MASK}@", text)
    for pattern in (_ASSIGNED, _FLAG_IN_TEXT):
        text = pattern.sub(_without_value, text)
    return _SECRET_FORMS.sub(MASK, text)


def _without_value(match: re.Match[str]) -> str:
    if not _is_secret_option(match["name"]):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "\"'" else ""
    return f"{match['name']}{match['sign']}{quote}{MASK}{quote}"
