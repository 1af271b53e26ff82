"""Measured numbers in the text of pages, and the page that lists what ran on what.

A page marks a number with a comment before and after it. The first comment holds a Jinja expression:

    A turn takes <!--= speed.loop.us_per_turn | digits -->46.7<!-- = --> µs.

`filled` replaces the text between the comments by the value of the expression. A marked block, such as a table, has
both comments on lines of their own. A line must not begin with a comment that text follows: Markdown does not read it.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks._pages import TEMPLATES, digits, template_environment
from benchmarks._speed_plan import FOLDER, Data, Record
from envgym.cli.plugin_kinds import KINDS
from envgym.registry import find, list_ids
from scripts.lanes.table import LANES

RESULTS: Final = FOLDER.parent / "docs" / "results"
STATUS_PAGE: Final = RESULTS / "status.md"
_MARK: Final = re.compile(r"(?P<start><!--= (?P<expression>.+?) -->)(?P<text>.*?)(?P<end><!-- = -->)", re.DOTALL)


class EarlierRun(Data):
    """The run of `make gpu` whose record was not kept."""

    device: str
    commit: str
    date: str
    stages: tuple[str, ...]


class StatusPart(Data):
    """A row of the table: what a part ran on."""

    name: str
    lane: str
    """The test lane that tests the part on a CPU."""
    stages: tuple[str, ...] = ()
    """The stages of `make gpu` that check the part."""
    no_gpu: bool = False
    """Whether the part does not use a GPU."""
    more: str = ""
    """What ran on several GPUs or machines; empty: the question does not arise."""


class Status(Data):
    earlier: EarlierRun
    parts: tuple[StatusPart, ...]


def read_status(path: Path = FOLDER / "status.toml") -> Status:
    """Read the rows. Raises: ValidationError: a field is unknown, missing or of another type."""
    return Status.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


def read_json(name: str) -> Any:  # a JSON tree
    """Return a file of docs/results; None: there is none."""
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def gpu_state(part: StatusPart, earlier: EarlierRun, record: Record | None) -> str:
    """Return what a part ran on a GPU: the device, the commit and the date, or that it never did."""
    if part.no_gpu:
        return "does not use a GPU"
    stages = {name: (record or {}).get(name) for name in part.stages}
    found = {name: stage for name, stage in stages.items() if stage is not None}
    if record is not None and found:
        states = [f"{name} {'passed' if has_passed(stage) else '**failed**'}" for name, stage in found.items()]
        return f"{record['machine'].get('device', 'unknown device')}, {_origin(record)}: {', '.join(states)}"
    if set(part.stages) & set(earlier.stages):
        return f"{earlier.device}, {earlier.commit}, {earlier.date}: passed; the record was not kept"
    return "**never**"


def has_passed(stage: Mapping[str, Any]) -> bool:
    """Return whether a stage of `make gpu` ran without an error, a warning and a check beyond its bound."""
    return not {"error", "warnings"} & set(stage) and all(check["passed"] for check in stage.get("checks", ()))


def _origin(record: Record) -> str:
    return f"{record.get('commit', 'unknown commit')}, {record.get('measured', 'unknown date')}"


def render_status(status: Status, gpu: Record | None, speed: Record) -> str:
    """Return the page that lists what ran on what."""
    lanes = {lane.name for lane in LANES}
    unknown = sorted({part.lane for part in status.parts} - lanes)
    assert not unknown, f"lanes must be in scripts/test_lanes.py, got {unknown}"
    states = [gpu_state(part, status.earlier, gpu) for part in status.parts]
    dates = sorted(part["measured"].partition(" ")[0] for part in speed["parts"].values())
    environment = template_environment([TEMPLATES])
    return environment.get_template("status.md.jinja").render(
        rows=zip(status.parts, states, strict=True), machine=speed["machine"], first=dates[0], last=dates[-1]
    )


def figures() -> dict[str, Any]:
    """Return what an expression can name: `speed.PART` and `demo` of docs/results, and `counts` of names in tables."""
    parts = read_json("speed.json")["parts"]
    speed = {name: part["result"] for name, part in parts.items() if "result" in part}
    counts = {name: len(kind.table) for name, kind in KINDS.items()}
    ids = [env_id for env_id in list_ids() if find(env_id).origin == "envgym"]
    return {"speed": speed, "demo": read_json("demo.json"), "counts": counts | {"environments": len(ids)}}


def filled(page: str, names: Mapping[str, Any]) -> str:
    """Return a page with the value of every expression between its comments.

    Raises:
        jinja2.TemplateError: an expression cannot be read, or names something that there is not.
    """
    environment = template_environment([TEMPLATES])
    environment.filters["digits"] = digits

    def fill(match: re.Match[str]) -> str:
        value = environment.from_string(f"{{{{ {match['expression']} }}}}").render(names)
        newline = "\n" if "\n" in match["text"] else ""
        return f"{match['start']}{newline}{value}{newline}{match['end']}"

    return _MARK.sub(fill, page)


def marks_of(page: str) -> list[str]:
    """Return the expressions of a page."""
    return [match["expression"] for match in _MARK.finditer(page)]
