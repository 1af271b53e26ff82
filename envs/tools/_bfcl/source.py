"""What the wheel of the Berkeley Function Calling Leaderboard brings: questions, functions and answers, each read once.

Its own evaluation asks for many packages; here its files are read, and only the classes of its stateful APIs imported.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envgym.core.json_types import JsonObject, JsonValue, content_hash
from envgym.core.tasks import Split, split_of
from envgym.errors import InvalidInput

WHERE = "tools/bfcl-v0"
NEEDED = ("bfcl_eval", "mpmath")
"""Modules that are needed; `bfcl_eval` itself imports nothing."""
ONE_CALL = ("simple_python", "multiple", "live_simple", "live_multiple")
SEVERAL_CALLS = ("parallel", "parallel_multiple", "live_parallel", "live_parallel_multiple")
NO_CALL = ("irrelevance", "live_irrelevance")
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
KINDS = (*ONE_CALL, *SEVERAL_CALLS, *NO_CALL, *MULTI_TURN)
"""Categories of the leaderboard."""
DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""Class of a stateful API -> module that has it, and file that documents its functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallQuestion:
    """One question of the leaderboard, as its files have it."""

    id: str
    kind: str
    turns: tuple[tuple[JsonObject, ...], ...]
    """The messages of each turn of the user; none where functions are added instead."""
    functions: tuple[JsonObject, ...]
    """Documents of the functions that are there from the start."""
    added: Mapping[int, tuple[JsonObject, ...]]
    """Turn -> functions that are added then."""
    answers: tuple[JsonValue, ...]
    """Single turn: a mapping from the function to the possible values of each argument, for each call. Multi-turn: the
    texts of the calls of each turn."""
    classes: tuple[str, ...] = ()
    """Stateful APIs of a multi-turn question."""
    config: JsonObject | None = None
    """State in which each API begins."""

    @property
    def is_multi_turn(self) -> bool:
        """Whether calls are run, and the user goes on."""
        return self.kind in MULTI_TURN

    @property
    def key(self) -> str:
        added = {str(turn): functions for turn, functions in self.added.items()}
        parts: Any = [self.turns, self.functions, added, self.answers, self.classes, self.config]
        return content_hash(parts)  # JSON writes a tuple as a list


def check_installed() -> None:
    """See that the wheel is there, without importing it. Raises: InvalidInput: it is not."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    do = "pip install 'envgym[tools]', then pip install --no-deps bfcl-eval"
    what, must, got = "the data of the leaderboard", "be installed", f"no {', '.join(missing)}"
    InvalidInput.unless(not missing, what, must, got, where=WHERE, do=do)


def data_folder() -> Path:
    package = find_spec("bfcl_eval")
    assert package is not None, "checked when the env was made"
    assert package.submodule_search_locations, "it is a package"
    return Path(package.submodule_search_locations[0]) / "data"


@cache
def questions(kind: str) -> tuple[CallQuestion, ...]:
    """Return the questions of a kind, in the order of its file."""
    return read_questions(data_folder(), kind)


@cache
def question(kind: str, name: str) -> CallQuestion:
    return next(item for item in questions(kind) if item.id == name)


def read_questions(folder: Path, kind: str) -> tuple[CallQuestion, ...]:
    """Read the questions of a kind. Raises: InvalidInput: a row lacks a field, or has another type of value there."""
    path, answer_path = folder / f"BFCL_v4_{kind}.json", folder / "possible_answer" / f"BFCL_v4_{kind}.json"
    answers: dict[str, tuple[JsonValue, ...]] = {}
    if kind not in NO_CALL:
        for row, place in _rows(answer_path):
            answers[_field(row, "id", str, place)] = tuple(_field(row, "ground_truth", list, place))
    return tuple(_question(folder, kind, row, place, answers) for row, place in _rows(path))


def _question(
    folder: Path, kind: str, row: JsonObject, place: str, answers: Mapping[str, tuple[JsonValue, ...]]
) -> CallQuestion:
    name = _field(row, "id", str, place)
    if kind not in NO_CALL and name not in answers:
        raise InvalidInput.of("row", "have an answer", name, where=place, do=_AGAIN)
    turns = tuple(tuple(_messages(messages, place)) for messages in _field(row, "question", list, place))
    if kind not in MULTI_TURN:
        functions = tuple(_checked(item, place) for item in _field(row, "function", list, place))
        return CallQuestion(
            id=name, kind=kind, turns=turns, functions=functions, added={}, answers=answers.get(name, ())
        )
    classes = tuple(_field(row, "involved_classes", list, place))
    documents = [item for cls in classes for item in _documents(folder, cls)]
    missing: Mapping[str, list[str]] = _field(row, "missed_function", dict, place) if "miss_func" in kind else {}
    names = {name for group in missing.values() for name in group}
    return CallQuestion(
        id=name,
        kind=kind,
        turns=turns,
        functions=tuple(item for item in documents if item["name"] not in names),
        added={int(turn): tuple(d for d in documents if d["name"] in group) for turn, group in missing.items()},
        answers=answers[name],
        classes=classes,
        config=_field(row, "initial_config", dict, place),
    )


def _messages(messages: object, place: str) -> Iterator[JsonObject]:
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        raise InvalidInput.of("field 'question'", "hold lists of messages", messages, where=place, do=_AGAIN)
    for item in messages:
        _field(item, "role", str, place)
        _field(item, "content", str, place)
        yield item


@cache
def _documents(folder: Path, cls: str) -> tuple[JsonObject, ...]:
    path = folder / "multi_turn_func_doc" / f"{DOCUMENTS[cls]}.json"
    return tuple(_checked(row, place) for row, place in _rows(path))


def _checked(document: object, place: str) -> JsonObject:
    if not isinstance(document, dict):
        raise InvalidInput.of("function", "be documented by an object", document, where=place, do=_AGAIN)
    for field, type_ in (("name", str), ("description", str), ("parameters", dict)):
        _field(document, field, type_, place)
    _field(document["parameters"], "properties", dict, place)
    return document


_AGAIN = "install bfcl-eval again"


def _field(row: JsonObject, field: str, type_: type, place: str) -> Any:  # of the type that is asked for
    if not isinstance(row.get(field), type_):
        got = repr(row[field]) if field in row else "nothing"
        raise InvalidInput.of(f"field {field!r}", f"hold a {type_.__name__}", got, where=place, do=_AGAIN)
    return row[field]


def _rows(path: Path) -> Iterator[tuple[JsonObject, str]]:
    if not path.is_file():
        raise InvalidInput.of("the data of the leaderboard", "have the file", path.name, where=WHERE, do=_AGAIN)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        place = f"row {number} of {path.name}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput.of("row", "be JSON", str(error), where=place, do=_AGAIN) from None
        InvalidInput.unless(isinstance(row, dict), "row", "be an object", line, where=place, do=_AGAIN)
        yield row, place


# ---- splits -------------------------------------------------------------------------------------------------------


def split_of_question(item: CallQuestion) -> Split:
    """Return the split: that of a hash of the group which the question belongs to."""
    return split_of({"bfcl": item.id.rpartition("_")[2] if item.is_multi_turn else _groups()[item.id]})


@cache
def _groups() -> Mapping[str, str]:
    """Return for each single-turn question one that names its group, the same for all kinds that are chosen.

    Questions that share the document of a function, or their words, are of one group, and so are those between them.
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    members = [item for kind in KINDS if kind not in MULTI_TURN for item in questions(kind)]
    for item in members:
        words = str(item.turns[0][-1]["content"]).strip()
        for shared in (f"words {words}", *(f"function {content_hash(function)}" for function in item.functions)):
            one, two = sorted((root(item.id), root(shared)))
            parent[two] = one
    return {item.id: root(item.id) for item in members}
