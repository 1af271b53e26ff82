"""The benchmark of speed: what a part brings, what other work took, which aims are reached, and the pages."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from benchmarks import _speed_envs, speed
from benchmarks._pages import digits, render_packing, render_speed
from benchmarks._speed_machine import other_seconds
from benchmarks._speed_plan import Part, Plan, Profile, read_plan, read_profiles, values_at, worst
from benchmarks.speed import measure

PAGE = Path("docs/results/speed.md")
MACHINE = {
    "cpu": "Some CPU",
    "cores": 2,
    "memory_gib": 23.4,
    "python": "3.11.7",
    "torch": "2.13.0",
    "transformers": "5.19.0",
}
PLAN = Plan.model_validate(
    {
        "parts": {
            "loop": {
                "title": "Agent loop",
                "module": "benchmarks.loop_overhead",
                "what": "Turns.",
                "limit_s": 10,
                "aims": [{"figure": "a turn", "unit": "µs", "key": "us", "better": "low", "aim": 45, "goal": 30}],
                "compared": [
                    {
                        "figure": "microseconds",
                        "better": "low",
                        "sides": [
                            {"name": "envgym", "key": "us"},
                            {"name": "other", "part": "peers", "key": "us", "version": "versions.other"},
                        ],
                    }
                ],
            },
            "peers": {"title": "Others", "module": "m", "what": "Theirs.", "limit_s": 10},
            "packing": {
                "title": "Packing",
                "module": "benchmarks.packing",
                "what": "Packed.",
                "limit_s": 10,
                "aims": [{"figure": "worst cell", "key": "cells.*.achieved", "better": "high", "aim": 0.85}],
            },
            "web": {
                "title": "Web",
                "module": "benchmarks.miniwob",
                "what": "Pages.",
                "limit_s": 10,
                "aims": [{"figure": "episodes per second", "key": "rate", "better": "high", "aim": 20}],
            },
        },
        "stated": [
            {
                "figure": "tests",
                "unit": "s",
                "value": 350,
                "better": "low",
                "aim": 360,
                "command": "test",
                "measured": "today",
            }
        ],
    }
)


def measured(result: object, others_cores: float | None = 0.02) -> dict[str, Any]:
    found = {"others_cores": others_cores, "load_before": 0.1, "load_after": 1.2, "seconds": 3.4}
    return {"command": "python -m m", "measured": "2026-01-02 03:04 UTC", **found, "result": result}


def cell(achieved: float) -> dict[str, object]:
    side = {"seconds": 1.5, "peak_mib": 2048.0}
    ratios = {"speedup": 4.0, "flop_ratio": 4.5, "preparation_share": 0.0012, "grad_norm_gap": 2e-7}
    return {"achieved": achieved, "packed": side, "padded": side, **ratios}


def record(**parts: object) -> dict[str, Any]:
    return {"machine": MACHINE, "parts": parts}


PACKING = {"model": "smollm2", "threads": 2, "micro_batch_tokens": 8192, "cells": {"flat": cell(0.99), "D3": cell(0.7)}}
FULL = record(
    loop=measured({"us": 40.0}),
    peers=measured({"us": 120.0, "versions": {"other": "1.2"}}, others_cores=0.5),
    packing=measured(PACKING),
    web={
        "error": "exit code 1\nTraceback\nRuntimeError: no browser\n",
        "command": "c",
        "measured": "m",
        "seconds": 1.0,
    },
)


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_the_worst_of_all_entries_counts() -> None:
    found = {"cells": {"a": {"x": 2}, "b": {"x": 3}, "c": {}}, "name": "x"}
    assert values_at(found, "cells.*.x") == [2, 3]
    assert (worst(found, "cells.*.x", "high"), worst(found, "cells.*.x", "low")) == (2, 3)
    assert worst(found, "name", "low") is None  # no number
    assert worst(found, "cells.a.y", "low") is None
    assert worst(None, "cells", "low") is None


@pytest.mark.parametrize(
    "value,text", [(0.85, "0.85"), (0.0123, "0.012"), (0, "0.00"), (45.0, "45.0"), (30_000, "30,000")]
)
def test_a_number_has_the_digits_that_count(value: float, text: str) -> None:
    assert digits(value) == text


def test_other_work_is_that_of_all_processes_but_ours_and_what_the_host_gave_to_others(tmp_path: Path) -> None:
    assert other_seconds(7, tmp_path) is None
    # 1 has two children: 5, and 7 (ours) with the child 8. Ticks: user, system, and both of children that have ended.
    ticks = {1: (0, (1, 2, 30, 40)), 5: (1, (100, 200, 0, 0)), 7: (1, (5000, 0, 9, 9)), 8: (7, (6000, 0, 0, 0))}
    for pid, (parent, counts) in ticks.items():
        (tmp_path / str(pid)).mkdir()
        before = " ".join(["0"] * 9)
        (tmp_path / str(pid) / "stat").write_text(
            f"{pid} (a (b) c) S {parent} {before} {' '.join(map(str, counts))} 20 0"
        )
    (tmp_path / "stat").write_text("cpu  100 20 30 7000 900 4 5 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    expected = (1 + 2 + 30 + 40 + 100 + 200 + 6) / os.sysconf("SC_CLK_TCK")  # 6 were stolen
    assert other_seconds(7, tmp_path) == pytest.approx(expected)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_work_of_ours_is_no_other_work_even_where_its_parent_has_ended() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {spin!r}])"
    code = (
        "import os, subprocess, sys, time\n"
        "from benchmarks._speed_machine import adopt_orphans, other_seconds\n"
        "adopt_orphans()\n"
        f"subprocess.run([sys.executable, '-c', {orphan!r}], check=True)\n"
        "pid, _ = os.wait()\n"  # the orphan is ours now, or there is no child to wait for
        "print(other_seconds(os.getpid()) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


# ---- parts -----------------------------------------------------------------------------------------------------------


def part(module: str, *arguments: str, **changes: Any) -> Part:  # fields of Part
    return Part.model_validate(
        {"title": "", "module": module, "what": "", "limit_s": 60, "arguments": arguments} | changes
    )


def test_a_part_that_fails_or_prints_no_json_says_so() -> None:
    assert measure(part("this"), more=False)["error"].startswith(
        "the last line that was printed is no JSON\nNamespaces"
    )
    failed = measure(part("json.tool", "no_such_file"), more=False)["error"]
    assert failed.startswith("exit code ")
    assert "no_such_file" in failed


def test_a_benchmark_of_ours_gives_its_result_and_what_the_machine_did() -> None:
    found = measure(part("benchmarks._speed_envs", "--sides", "envgym", "--steps", "20", "--rounds", "1"), more=False)
    assert found["result"]["sides"].keys() == {"envgym"}
    assert found["command"] == "python -m benchmarks._speed_envs --sides envgym --steps 20 --rounds 1"
    assert found["seconds"] > 0
    assert found["others_cores"] is None or found["others_cores"] >= 0


def test_a_part_beyond_its_limit_is_stopped_and_says_so() -> None:
    found = measure(part("http.server", "0", limit_s=1), more=False)
    assert found["error"].startswith("stopped after 1 s")


def test_a_part_without_its_libraries_says_how_to_get_them(tmp_path: Path) -> None:
    found = measure(part("json.tool", environment="speed", docker=True), more=False, root=tmp_path)
    assert "make speed" in found["error"]
    assert found["command"] == "python scripts/with_docker.py .venv-speed/bin/python -m json.tool"


def test_only_some_parts_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "speed.md"
    given: list[Part] = []

    def fake(part: Part, *, more: bool) -> dict[str, Any]:
        given.append(part)
        return {"error": "no", "seconds": 0.0} if more else measured(PACKING)

    monkeypatch.setattr(speed, "measure", fake)
    monkeypatch.setattr(sys, "argv", ["speed", "--page", str(page)])
    assert speed.main() == 0
    assert len(given) == len(read_plan().parts)
    first = json.loads(page.with_suffix(".json").read_text())
    monkeypatch.setattr(sys, "argv", ["speed", "--page", str(page), "--only", "loop", "--all"])
    assert speed.main() == 1
    second = json.loads(page.with_suffix(".json").read_text())
    assert second["parts"].pop("loop") == {"error": "no", "seconds": 0.0}
    assert second["parts"] == {name: part for name, part in first["parts"].items() if name != "loop"}
    assert "**Not measured**: no." in page.read_text()
    given.clear()
    monkeypatch.setattr(sys, "argv", ["speed", "--page", str(page), "--resume"])
    assert speed.main() == 0
    assert given == [read_plan().parts["loop"]]
    assert json.loads(page.with_suffix(".json").read_text()) == first


def test_figures_of_two_machines_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "speed.md"
    page.with_suffix(".json").write_text(json.dumps(record()))
    monkeypatch.setattr(sys, "argv", ["speed", "--page", str(page), "--only", "loop"])
    with pytest.raises(SystemExit):
        speed.main()
    assert "--only and --resume must run on the machine and versions of the other figures" in capsys.readouterr().err


def test_envgym_plays_the_game_of_the_others() -> None:
    times = _speed_envs.play(_speed_envs.make_envgym(), 40)
    assert min(times) > 0


# ---- pages -----------------------------------------------------------------------------------------------------------


def test_page_says_what_is_reached_and_why_a_part_is_missing() -> None:
    page = render_speed(PLAN, FULL, ())
    for line in (
        "**Answer.** Of 4 aims, 2 are reached, 1 are not, and 1 could not be measured.",
        "The machine was not idle in 1 of 3 parts, whose times are too long.",
        "Machine: Some CPU, 2 cores, 23 GiB; Python 3.11.7, torch 2.13.0, transformers 5.19.0.",
        "| Agent loop | a turn | 40.0 µs | ≤ 45.0 µs (later 30.0) | yes | idle |",
        "| Packing | worst cell | 0.70 | ≥ 0.85 | **no** | idle |",
        "| Web | episodes per second |  | ≥ 20.0 | **not measured** |  |",
        "`test`: tests, 350 s (today); aim ≤ 360 s: reached.",
        "**Not measured**: exit code 1, `RuntimeError: no browser`.",
        "Measured 2026-01-02 03:04 UTC in 3 s; load 0.1 before and 1.2 after; other work: 0.02 cores (idle).",
        "other work: 0.50 cores (**not idle**).",
        "| envgym | 40.0 |  |",
        "| other 1.2 | 120 | 3.00 times as fast |",
    ):
        assert line in page
    assert "Profiles" not in page


def test_answer_is_short_where_everything_is_idle_and_measured() -> None:
    page = render_speed(Plan(parts={"loop": PLAN.parts["loop"]}), record(loop=measured({"us": 40.0})), ())
    assert "**Answer.** Of 1 aims, 1 are reached, 0 are not. All parts were measured on an idle machine.\n" in page
    assert "| other | not measured |  |" in page


def test_profiles_are_a_section_with_their_ratio() -> None:
    profile = Profile(what="decode", before_ms=30, after_ms=20, operators_before=1200, operators_after=800, note="n")
    assert "| decode | 30.0 | 20.0 | 1.50 | 1,200 | 800 | n |" in render_speed(PLAN, FULL, [profile])


def test_page_on_packing_has_every_cell_and_its_circumstances() -> None:
    page = render_packing(FULL)
    for line in (
        "**Answer.** Between 0.70 (`D3`) and 0.99 (`flat`) of the counted ratio.",
        "| `flat` | 4.00 | 4.50 | 0.990 | 1.50 | 1.50 | 2,048 | 2,048 | 0.12 % | 2.0e-07 |",
        "other work: 0.02 cores (idle).",
    ):
        assert line in page
    assert "**Answer.** Not known: it has not been run.\n" in render_packing(record())


def test_pages_are_those_of_the_record() -> None:
    found = json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == render_speed(read_plan(), found, read_profiles())
    assert PAGE.with_name("packing.md").read_text(encoding="utf-8") == render_packing(found)


def test_every_module_of_the_plan_exists_and_a_misspelt_field_is_refused() -> None:
    plan = read_plan()
    assert all(find_spec(part.module) for part in plan.parts.values())
    with pytest.raises(ValidationError, match="titel"):
        Part.model_validate({"titel": "x"})
