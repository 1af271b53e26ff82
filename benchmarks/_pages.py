"""Pages of results from Jinja templates: one renderer for studies, speed and GPU.

The templates of speed and GPU lie in `benchmarks/pages/`; those of a study in its folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined

from benchmarks._speed_plan import (
    BUSY_CORES,
    Aim,
    Plan,
    Profile,
    Record,
    Side,
    Stated,
    aims_of,
    is_idle,
    is_reached,
    values_at,
    worst,
)

TEMPLATES: Final = Path(__file__).parent / "pages"


def template_environment(folders: Iterable[Path], *, undefined: type[Undefined] = StrictUndefined) -> Environment:
    """Return an environment with what all pages use: `row` and `head` of tables, `number` and `percent`."""
    environment = Environment(
        loader=FileSystemLoader(list(folders)),
        undefined=undefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    environment.globals.update(row=row, head=head)
    environment.filters.update(number=format, percent=lambda value, digits=1: f"{100 * value:.{digits}f}")
    return environment


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def head(*cells: object) -> str:
    return f"{row(*cells)}\n|{'---|' * len(cells)}"


def render_gpu(record: Record | None) -> str:
    """Return the page on a GPU; None: nothing has been measured on one yet."""
    stages = {name: of for name, of in (record or {}).items() if isinstance(of, Mapping)}
    failed = [
        name
        for name, of in stages.items()
        if {"error", "warnings"} & set(of) or not all(check["passed"] for check in of.get("checks", ()))
    ]
    environment = template_environment([TEMPLATES], undefined=Undefined)
    return environment.get_template("gpu.md.jinja").render(record=record, stages=stages, failed=failed)


def render_speed(plan: Plan, record: Record, profiles: Sequence[Profile]) -> str:
    """Return the page on speed.

    Args:
        plan: parts and aims.
        record: `machine` and `parts`, as written to the JSON file.
        profiles: the section before and after; empty: none.
    """

    def result(part: str, side: Side) -> Any:  # a JSON tree
        return record["parts"].get(side.part or part, {}).get("result")

    aims = []
    for name, part, aim in aims_of(plan):
        value = worst(record["parts"].get(name, {}).get("result"), aim.key, aim.better)
        aims.append((name, part, aim, value, _verdict(value, aim)))
    return (
        _speed_environment()
        .get_template("speed.md.jinja")
        .render(
            plan=plan,
            record=record,
            profiles=profiles,
            aims=aims,
            stated_verdicts=[_verdict(each.value, each) for each in plan.stated],
            busy_cores=BUSY_CORES,
            figure=lambda part, side: worst(result(part, side), side.key, "low"),
            versions=lambda part, side: values_at(result(part, side), side.version) if side.version else [],
        )
    )


def render_packing(record: Record) -> str:
    return _speed_environment().get_template("packing.md.jinja").render(record=record)


def _speed_environment() -> Environment:
    environment = template_environment([TEMPLATES])
    environment.globals.update(is_idle=is_idle, with_unit=lambda value, unit: f"{digits(value)} {unit}".rstrip())
    environment.filters["digits"] = digits
    environment.tests["idle"] = is_idle
    return environment


def _verdict(value: float | None, aim: Aim | Stated) -> str:
    return "not measured" if value is None else "yes" if is_reached(value, aim.aim, aim.better) else "no"


def digits(value: float) -> str:
    """Write a number with three significant digits."""
    if value and abs(value) < 0.1:
        return f"{value:.2g}"
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{places}f}"
