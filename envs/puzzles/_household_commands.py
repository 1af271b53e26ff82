"""Commands of a household: how they are read and written."""

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from envgym.envs.puzzles._household_catalogue import STATES
from envgym.verifiers.extract import plain_answer

MAX_COMMAND = 80
"""Longer commands, in characters, are none."""
MAX_KEPT = 200
"""What was read in messages up to this length is kept: commands are few, and are said again and again."""
_NOUN = r"[a-z]+(?: [a-z]+)?(?: ?\d+)?"
_THING, _PLACE, _INTO = rf"(?P<thing>{_NOUN})", rf"(?P<place>{_NOUN})", r"(?:in/on|into|onto|in|on|to)"
_FORMS = (
    ("go", "go walk", rf"(?:go|walk) (?:to )?{_PLACE}"),
    ("open", "open", rf"open {_PLACE}"),
    ("close", "close shut", rf"(?:close|shut) {_PLACE}"),
    ("take", "take get grab pick", rf"(?:take|get|grab|pick up) {_THING} (?:out of|from) {_PLACE}"),
    ("put", "put place move", rf"(?:put|place|move) {_THING} {_INTO} {_PLACE}"),
    *((verb, verb, rf"{verb} {_THING} (?:with|using|in) {_PLACE}") for verb in STATES),
    ("turn on", "turn switch use", rf"(?:turn on|switch on|use) {_THING}"),
    ("look", "look", r"look(?: around)?"),
    ("examine", "look examine inspect", rf"(?:examine|inspect|look at) {_THING}"),
    ("inventory", "inventory i", r"inventory|i"),
)
"""Verb, the words that a command of it may begin with, and its form."""
_FORMS_BY_WORD: Mapping[str, list[tuple[str, re.Pattern[str]]]] = MappingProxyType(
    {
        word: [(verb, re.compile(form)) for verb, words, form in _FORMS if word in words.split()]
        for word in " ".join(words for _, words, _ in _FORMS).split()
    }
)
_ARTICLES = ("a", "an", "the")


class HouseholdCommand(NamedTuple):
    """A verb and the names it is about; empty where it needs none."""

    verb: str
    thing: str = ""
    place: str = ""

    def text(self, relation: str) -> str:
        """Write the command; `relation` says how things lie at the place."""
        if self.verb == "go":
            return f"go to {self.place}"
        joined = {"take": "from", "put": relation}.get(self.verb, "with") if self.thing and self.place else ""
        return " ".join(filter(None, (self.verb, self.thing, joined, self.place)))


def read_command(message: str) -> HouseholdCommand | None:
    """Return the command that a message is, or that its last line is."""
    return _read_short(message) if len(message) <= MAX_KEPT else _read(message)


def _read(message: str) -> HouseholdCommand | None:
    last_line = message.strip().rpartition("\n")[2]
    if last_line == message and (command := _read_line(message.lower())):
        return command
    return _read_line(plain_answer(message)) or _read_line(plain_answer(last_line))


_read_short = lru_cache(maxsize=4096)(_read)


def _read_line(line: str) -> HouseholdCommand | None:
    if len(line) > MAX_COMMAND:
        return None
    words = [word for word in line.removeprefix("action:").strip("> .`").split() if word not in _ARTICLES]
    text = " ".join(words)
    for verb, form in _FORMS_BY_WORD.get(words[0], ()) if words else ():
        if match := form.fullmatch(text):
            return HouseholdCommand(verb, **{name: _name(noun) for name, noun in match.groupdict().items()})
    return None


def _name(noun: str) -> str:
    """Write a name as a household has it: `sink basin 1` and `sinkbasin1` are `sinkbasin 1`."""
    return noun if noun.partition(" ")[2].isdigit() else re.sub(r"(?<=[a-z])(?=\d)", " ", noun.replace(" ", ""))
