"""The pages `docs/results/speed.md` and `docs/results/packing.md`, from what `benchmarks/speed.py` found."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks._speed_plan import (
    BUSY_CORES,
    Aim,
    Compared,
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
from benchmarks._tables import table

_QUESTION: Final = """\
# Speed

**Question.** How fast is envgym, part by part, beside the libraries that do the same, and what does not reach its aim?
"""
_COMMAND: Final = f"""
```bash
make speed
```

The command runs every part one after another, each in a process of its own, in less than 30 minutes on two idle cores,
and writes this page, [Packing in numbers](packing.md) and `docs/results/speed.json`. The other libraries are installed
into `.venv-speed` (versions in `constraints/speed.txt`). `.venv/bin/python -m benchmarks.speed --only packing loop`
measures two parts again and leaves the figures of the others; `--all` measures every cell of packing, in an hour
more. The aims are in `benchmarks/speed.toml`.

For each part the page gives the load of the machine (mean over one minute) before and after, and the processor time
that other work took meanwhile, in cores: that of all processes but those of the part, and what the host of a virtual
machine gave to others. A part beside which other work took more than {BUSY_CORES:g} of a core is marked "not idle"; its
times are too long by an unknown factor.
"""
_PROFILE: Final = """
## Profiles before and after

One step before and after the changes to its code, both timed in alternation in one run. Operator calls are those that
the profiler of torch counts in one step.

"""
_PACKING: Final = """\
# Packing in numbers

**Question.** How much of the arithmetic that [packing](../packing.md) saves does a train step on the CPU gain in time?

"""
_CELLS: Final = """
`G8-P512` is 8 samples of 96 tokens on a prompt of 512 tokens, `D3` a full binary tree of depth 3 with turns of 32
tokens, `flat` 8 rows that share nothing. The padded side is a fair opponent: length buckets, and the head on trained
tokens only. *Counted* is the ratio of the floating-point operations of both sides, *achieved* the speed-up divided by
it. *Preparation* is the share of the packed step that merging rows and building masks takes. *Difference* is the
relative one of the gradients' norms. `--all` adds prompts of 2,048 tokens and a tree of depth 6.
"""


def render_page(plan: Plan, record: Record, profiles: Sequence[Profile]) -> str:
    """Return the page on speed.

    Args:
        plan: parts and aims.
        record: `machine` and `parts`, as written to the JSON file.
        profiles: the section before and after; empty: none.
    """
    parts = [
        _QUESTION,
        f"\n**Answer.** {_answer(plan, record)}\n",
        f"\n{_machine(record)}\n",
        _COMMAND,
        "\n## Aims\n\n",
        *table(["part", "figure", "measured", "aim", "reached", "machine"], _aim_rows(plan, record)),
        *_stated(plan),
        "\n## Parts\n",
        *_sections(plan, record),
    ]
    if profiles:
        head = ["step", "before, ms", "after, ms", "ratio", "operator calls before", "after", "note"]
        parts += [_PROFILE, *table(head, _profile_rows(profiles))]
    return "".join(parts)


def render_packing(record: Record) -> str:
    """Return the page on packing."""
    measured = record["parts"].get("packing")
    if measured is None or "error" in measured:
        return f"{_PACKING}**Answer.** Not known: {_why_missing(measured)}.\n{_CELLS}"
    result = measured["result"]
    shares = {name: cell["achieved"] for name, cell in result["cells"].items()}
    least, most = (choose(shares, key=shares.__getitem__) for choose in (min, max))
    answer = f"Between {shares[least]:.2f} (`{least}`) and {shares[most]:.2f} (`{most}`) of the counted ratio."
    sizes = ["packed, s", "padded, s", "packed, MiB", "padded, MiB"]
    head = ["cell", "speed-up", "counted", "achieved", *sizes, "preparation", "difference"]
    settings = (
        f"{result['model']}, {result['threads']} threads, at most {result['micro_batch_tokens']:,} tokens of a pack"
    )
    return "".join(
        [
            _PACKING,
            f"**Answer.** {answer}\n\n{settings}. {_machine(record)} {_circumstances(measured)}\n\n",
            *table(head, _packing_rows(result["cells"])),
            _CELLS,
            f"\nCommand: `{measured['command']}`; `make speed` runs it with the rest: [Speed](speed.md).\n",
        ]
    )


def _packing_rows(cells: Record) -> Iterator[list[str]]:
    for name, cell in cells.items():
        packed, padded = cell["packed"], cell["padded"]
        yield [
            f"`{name}`",
            f"{cell['speedup']:.2f}",
            f"{cell['flop_ratio']:.2f}",
            f"{cell['achieved']:.3f}",
            f"{packed['seconds']:.2f}",
            f"{padded['seconds']:.2f}",
            f"{packed['peak_mib']:,.0f}",
            f"{padded['peak_mib']:,.0f}",
            f"{100 * cell['preparation_share']:.2f} %",
            f"{cell['grad_norm_gap']:.1e}",
        ]


def _answer(plan: Plan, record: Record) -> str:
    counts = Counter(_verdict(_value(record, name, aim), aim) for name, _, aim in aims_of(plan))
    counts.update(_verdict(each.value, each) for each in plan.stated)
    told = f"Of {counts.total()} aims, {counts['yes']} are reached, {counts['no']} are not"
    if counts["not measured"]:
        told += f", and {counts['not measured']} could not be measured"
    good = [part for part in record["parts"].values() if "error" not in part]
    busy = sum(not is_idle(part) for part in good)
    if not busy:
        return f"{told}. All parts were measured on an idle machine."
    return f"{told}. The machine was not idle in {busy} of {len(good)} parts, whose times are too long."


def _machine(record: Record) -> str:
    machine = record["machine"]
    return (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB; "
        f"Python {machine['python']}, torch {machine['torch']}, transformers {machine['transformers']}."
    )


def _value(record: Record, part: str, aim: Aim) -> float | None:
    return worst(record["parts"].get(part, {}).get("result"), aim.key, aim.better)


def _verdict(value: float | None, aim: Aim | Stated) -> str:
    return "not measured" if value is None else "yes" if is_reached(value, aim.aim, aim.better) else "no"


def _aim_rows(plan: Plan, record: Record) -> Iterator[list[str]]:
    for name, part, aim in aims_of(plan):
        value = _value(record, name, aim)
        bound = _bound(aim) + ("" if aim.goal is None else f" (later {number(aim.goal)})")
        verdict = _verdict(value, aim)
        if value is None:
            yield [part.title, aim.figure, "", bound, f"**{verdict}**", ""]
            continue
        machine = "idle" if is_idle(record["parts"][name]) else "**not idle**"
        shown = _with_unit(value, aim.unit)
        yield [part.title, aim.figure, shown, bound, verdict if verdict == "yes" else f"**{verdict}**", machine]


def _stated(plan: Plan) -> Iterator[str]:
    for each in plan.stated:
        verdict = "reached" if is_reached(each.value, each.aim, each.better) else "**not reached**"
        yield (
            f"\nMeasured by another command, `{each.command}`: {each.figure}, {_with_unit(each.value, each.unit)} "
            f"({each.measured}); aim {_bound(each)}: {verdict}.\n"
        )


def _sections(plan: Plan, record: Record) -> Iterator[str]:
    for name, part in plan.parts.items():
        measured = record["parts"].get(name)
        yield f"\n### {part.title}\n\n{part.what}\n"
        if measured is None or "error" in measured:
            yield f"\n**Not measured**: {_why_missing(measured)}.\n"
            continue
        yield f"\n`{measured['command']}`\n\n{_circumstances(measured)}\n"
        for compared in part.compared:
            yield "\n"
            yield from table(
                ["side", compared.figure, f"{compared.sides[0].name} is"], _compared_rows(record, name, compared)
            )


def _why_missing(measured: Record | None) -> str:
    """Return why a part has no figures, as a clause: the reason and the last line that the benchmark wrote."""
    if measured is None:
        return "it has not been run"
    reason, _, rest = measured["error"].partition("\n")
    last = rest.strip().rpartition("\n")[2]
    return f"{reason}, `{last}`" if last else reason


def _circumstances(measured: Record) -> str:
    others = measured["others_cores"]
    used = "unknown to this system" if others is None else f"{others:.2f} cores"
    state = "idle" if is_idle(measured) else "**not idle**"
    return (
        f"Measured {measured['measured']} in {measured['seconds']:.0f} s; load {measured['load_before']:.1f} before "
        f"and {measured['load_after']:.1f} after; other work: {used} ({state})."
    )


def _compared_rows(record: Record, part: str, compared: Compared) -> Iterator[list[str]]:
    ours = _figure(record, part, compared.sides[0])
    for side in compared.sides:
        value = _figure(record, part, side)
        versions = values_at(_result(record, part, side), side.version) if side.version else []
        name = " ".join([side.name, *map(str, versions)])
        if value is None:
            yield [name, "not measured", ""]
        elif ours is None or side == compared.sides[0]:
            yield [name, number(value), ""]
        else:
            times = value / ours if compared.better == "low" else ours / value
            yield [name, number(value), f"{number(times)} times as fast"]


def _result(record: Record, part: str, side: Side) -> Any:  # a JSON tree
    return record["parts"].get(side.part or part, {}).get("result")


def _figure(record: Record, part: str, side: Side) -> float | None:
    return worst(_result(record, part, side), side.key, "low")


def _profile_rows(profiles: Sequence[Profile]) -> Iterator[list[str]]:
    for each in profiles:
        times = f"{each.before_ms / each.after_ms:.2f}"
        calls = [f"{each.operators_before:,}", f"{each.operators_after:,}"]
        yield [each.what, number(each.before_ms), number(each.after_ms), times, *calls, each.note]


def _bound(aim: Aim | Stated) -> str:
    return f"{'≥' if aim.better == 'high' else '≤'} {_with_unit(aim.aim, aim.unit)}"


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value)} {unit}".rstrip()


def number(value: float) -> str:
    """Write a number with three digits that count."""
    if value and abs(value) < 0.1:
        return f"{value:.2g}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"
