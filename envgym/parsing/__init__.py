"""Text formats of agents without native tool calls: text -> `Action` and back."""

from functools import lru_cache

from envgym.catalog import TEXT_FORMAT
from envgym.core.messages import Action
from envgym.parsing.formats import TextFormat
from envgym.plugins import Choice


@lru_cache(maxsize=64)
def text_format(name: str) -> TextFormat:
    """Return the format called `name`. Raises: UnknownName: there is none; near names are listed."""
    return TEXT_FORMAT.build(Choice(name=name))


def parse_action(text: str, format: str = "hermes") -> Action:
    """Read `text` in a format; never raises on any text. Raises: UnknownName: no such format."""
    return text_format(format).parse(text)
