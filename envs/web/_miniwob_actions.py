"""Actions on a page, as text and as records."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from envgym.core.json_types import JsonObject

MAX_TEXT = 5_000
MAX_KEYS = 100
_ARROWS = ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown")
_WAYS = ("Enter", "Tab", "Escape", "Backspace", "Delete", "Space", "Home", "End", "PageUp", "PageDown")
KEYS: Final = frozenset((*_WAYS, *_ARROWS))
MODIFIERS: Final = frozenset(("Shift", "Control"))
GRAMMAR: Final = (
    "click ID | click ID at X Y | hover ID | drag ID to ID | drag ID at X Y to ID at X Y | fill ID TEXT | "
    'select ID "OPTION" | press KEY | press KEY on ID | scroll by PIXELS | scroll ID by PIXELS | goto URL | back | '
    "answer TEXT"
)
HINT: Final = f"Say one action, in a line of its own: {GRAMMAR}."


class ActionRefused(ValueError):
    """An action that cannot be done; the message says why."""


class ElementPoint(NamedTuple):
    """A point on an element: pixels from its left upper corner, its middle where they are None."""

    id: int
    x: float | None = None
    y: float | None = None

    def __str__(self) -> str:
        """Write the place as in an action."""
        return str(self.id) if self.x is None or self.y is None else f"{self.id} at {self.x:g} {self.y:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCommand:
    name: str
    start: ElementPoint | None = None
    end: ElementPoint | None = None
    text: str = ""
    """What is typed, answered or opened."""
    options: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    pixels: int = 0

    def __str__(self) -> str:
        """Write the action as text that `parse_command` reads."""
        parts: list[object] = [self.name]
        match self.name:
            case "drag":
                parts += [self.start, "to", self.end]
            case "fill":
                parts += [self.start, json.dumps(self.text, ensure_ascii=False)]
            case "select":
                parts += [self.start, *(json.dumps(option, ensure_ascii=False) for option in self.options)]
            case "press":
                parts += [*self.keys, *(("on", self.start) if self.start else ())]
            case "scroll":
                parts += [*((self.start,) if self.start else ()), "by", self.pixels]
            case "goto" | "answer":
                parts += [self.text]
            case _:
                parts += [self.start] if self.start else []
        return " ".join(map(str, parts)).strip()

    @property
    def places(self) -> tuple[ElementPoint, ...]:
        return tuple(place for place in (self.start, self.end) if place is not None)

    def for_page(self) -> JsonObject:
        """Return the script's arguments; a drag onto the same element goes from its first corner to its last."""
        is_mark = self.start is not None and self.start == self.end and self.start.x is None
        return {
            "from": {**self.start._asdict(), "part": "first" if is_mark else "middle"} if self.start else None,
            "to": {**self.end._asdict(), "part": "last" if is_mark else "middle"} if self.end else None,
            "text": self.text,
            "options": list(self.options),
            "dy": self.pixels,
        }


_NUMBER = r"-?\d{1,5}(?:\.\d{1,3})?"
_ID = r"\[?(\d{1,5})\]?"
_PLACE = rf"{_ID}(?: at ({_NUMBER})[ ,]+({_NUMBER}))?"
_REST = r"(?: +(.*))?"
_BLANK: Final = " \t\r"
"""Not the line breaks of Unicode: they may be part of a text."""
_FORMS: Final[Mapping[str, str]] = {
    "click": _PLACE,
    "hover": _PLACE,
    "drag": rf"{_PLACE} to {_PLACE}",
    "fill": rf"{_ID}{_REST}",
    "select": rf"{_ID} +(.+)",
    "press": rf"(.+?)(?: on {_ID})?",
    "scroll": rf"(?:{_ID} )?by (-?\d{{1,5}})",
    "goto": r"(\S+)",
    "back": "",
    "answer": r"(.*)",
}
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


def parse_command(text: str) -> PageCommand:
    """Read the one line of `text` that is an action. Raises: ActionRefused: there is not exactly one."""
    lines = [line.strip(_BLANK) for line in text.split("\n")]
    commands = [line for line in lines if line.partition(" ")[0].lower() in _FORMS]
    if len(commands) != 1:
        raise ActionRefused(HINT)
    name, _, rest = commands[0].partition(" ")
    name = name.lower()
    match = re.fullmatch(_FORMS[name], rest.strip(_BLANK), re.DOTALL)
    if match is None:
        raise ActionRefused(HINT)
    return check_command(_READERS.get(name, _read_pointer)(name, match))


def check_command(command: PageCommand) -> PageCommand:
    """Return a command that may be tried. Raises: ActionRefused: a key or a text that is not taken."""
    if len(command.text) > MAX_TEXT or sum(map(len, command.options)) > MAX_TEXT:
        raise ActionRefused(f"A text must have at most {MAX_TEXT} characters.")
    if len(command.keys) > MAX_KEYS:
        raise ActionRefused(f"At most {MAX_KEYS} keys are pressed at once.")
    for key in command.keys:
        _check_key(key)
    return command


def _check_key(key: str) -> None:
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    is_known = last in KEYS or (len(last) == 1 and last.isprintable())
    if not is_known or not set(modifiers) <= MODIFIERS:
        raise ActionRefused(f"There is no key {key[:40]!r}: a key is a character or one of {', '.join(sorted(KEYS))}.")
    if "Control" in modifiers and last.lower() in "cvx":
        raise ActionRefused("There is no clipboard; fill the field with the text instead.")
    if "Control" in modifiers and len(last) == 1 and last.lower() != "a":
        raise ActionRefused("Control goes with a, and with the named keys.")


def _place(id: str, x: str | None = None, y: str | None = None) -> ElementPoint:
    return ElementPoint(int(id), None if x is None else float(x), None if y is None else float(y))


def _plain(text: str | None) -> str:
    text = (text or "").strip(_BLANK)
    if _STRINGS.fullmatch(text):
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    return text


def _read_pointer(name: str, match: "re.Match[str]") -> PageCommand:
    return PageCommand(name=name, start=_place(*match.groups()) if match.groups() else None)


def _read_drag(name: str, match: "re.Match[str]") -> PageCommand:
    parts = match.groups()
    return PageCommand(name=name, start=_place(*parts[:3]), end=_place(*parts[3:]))


def _read_fill(name: str, match: "re.Match[str]") -> PageCommand:
    return PageCommand(name=name, start=_place(match[1]), text=_plain(match[2]))


def _read_select(name: str, match: "re.Match[str]") -> PageCommand:
    strings = _STRINGS.findall(match[2])
    is_quoted = strings and not _STRINGS.sub("", match[2]).replace(",", "").strip()
    options = tuple(map(_plain, strings)) if is_quoted else (_plain(match[2]),)
    return PageCommand(name=name, start=_place(match[1]), options=options)


def _read_press(name: str, match: "re.Match[str]") -> PageCommand:
    return PageCommand(name=name, keys=tuple(match[1].split()), start=_place(match[2]) if match[2] else None)


def _read_scroll(name: str, match: "re.Match[str]") -> PageCommand:
    return PageCommand(name=name, start=_place(match[1]) if match[1] else None, pixels=int(match[2]))


def _read_text(name: str, match: "re.Match[str]") -> PageCommand:
    return PageCommand(name=name, text=_plain(match[1]))


_READERS: Final[Mapping[str, Callable[[str, Any], PageCommand]]] = {  # Any: a match of text
    "drag": _read_drag,
    "fill": _read_fill,
    "select": _read_select,
    "press": _read_press,
    "scroll": _read_scroll,
    "goto": _read_text,
    "answer": _read_text,
}
