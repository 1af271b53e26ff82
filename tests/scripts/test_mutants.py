"""The faults of mutation testing: which there are, that their names last, and the table of what is tested."""

import tomllib
from pathlib import Path

import pytest

from scripts.mutants import faulty_source, mutants
from scripts.mutation import ROOT, Stratum, draw, left_behind, module_name

TABLE = tomllib.loads((ROOT / "scripts" / "mutation.toml").read_text(encoding="utf-8"))
STRATA = [Stratum(**entry) for entry in TABLE["strata"]]


def changed(line: str) -> set[str]:
    return {mutant.after for mutant in mutants("m.py", line)}


@pytest.mark.parametrize(
    "line, expected",
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a is not b in c", {"x = a is b in c", "x = a is not b not in c"}),
        ("x = a - b", {"x = a + b"}),
        ("x //= b", {"x *= b"}),
        ("x = a and b", {"x = a or b"}),
        ("x = -a", {"x = a"}),
        ("x = 1.5", {"x = 2.5"}),
        ("x = True", {"x = False"}),
        ("f(a)", {"pass"}),
        ("x = a[1:]", {"x = a[:]", "x = a[2:]"}),
        ("x = a[part]", {"x = a"}),
        ("x = f(a, b, c)", {"x = f(b, a, c)"}),
        ("x = a.min(dim=-1)", {"x = a.max(dim=-1)", "x = a.min()", "x = a.min(dim=-2)"}),
        ("x = a.clamp(max=b)", {"x = a", "x = a.clamp(min=b)"}),
        ("x = math.exp(a)", {"x = a"}),
        ("x = max(a, b)", {"x = min(a, b)"}),
        ("x = b if c else d", {"x = b if not c else d"}),
        ("x = [a for a in b if c]", {"x = [a for a in b if True]"}),
        ("def f(a=2):\n    return a", {"3", "return None"}),
        ("if a:\n    b = c", {"not a"}),
    ],
)
def test_faults_of_a_line(line: str, expected: set[str]) -> None:
    assert changed(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "x = 'text'",
        "import a",
        "assert a < b",
        "raise E(a + 1)",
        "x = f'{a + 1}'",
        "x: Literal[1]",
        "@f(1)\nclass A(B[2]):\n    pass",
        "X = A | B",
        "if TYPE_CHECKING:\n    x = 1",
        "x = zip(*a, strict=True)",
    ],
)
def test_what_is_no_number_is_left_alone(line: str) -> None:
    assert changed(line) == set()


def test_the_faulty_module_has_its_fault_and_nothing_else() -> None:
    source = "def f(a):\n    if a > 0:\n        return a * 2\n    return a\n"
    found = mutants("m.py", source)
    for mutant in found:
        text = faulty_source(source, mutant.number)
        assert text.replace(mutant.after, mutant.before) == source.rstrip()
    assert [mutant.function for mutant in found] == ["f"] * len(found)


def test_equal_faults_are_told_apart_and_a_change_elsewhere_renames_none() -> None:
    source = "def f(a):\n    a += 1\n    a += 1\n"
    keys = [mutant.key for mutant in mutants("m.py", source)]
    assert len(set(keys)) == len(keys) == 4
    assert [mutant.key for mutant in mutants("m.py", "y = z\n" + source)] == keys


def test_a_smaller_sample_is_part_of_a_larger_one_and_no_file_is_left_out() -> None:
    (packing,) = (stratum for stratum in STRATA if stratum.name == "packing")
    few, many = (draw(packing, size=size, seed=14) for size in (20, 60))
    assert {mutant.key for mutant in few} < {mutant.key for mutant in many}
    assert 60 <= len(many) <= 60 + len(packing.files())
    with_mutants = {path for path in packing.files() if mutants(path, (ROOT / path).read_text(encoding="utf-8"))}
    assert {mutant.path for mutant in few} == with_mutants
    assert draw(packing, size=20, seed=15) != few


def test_the_table_names_files_tests_and_faults_that_there_are() -> None:
    for stratum in STRATA:
        assert stratum.files()
        assert stratum.test_files(TABLE["excluded"])
        assert all((ROOT / name).exists() for name in stratum.tests)
    assert all((ROOT / name.partition("::")[0]).exists() for name in TABLE["excluded"])
    fields = ("path", "function", "before", "after")
    assert left_behind({tuple(entry[name] for name in fields) for entry in TABLE["equivalent"]}) == []
    for entry in TABLE["equivalent"]:
        assert entry["reason"]
        assert entry["before"] != entry["after"]


def test_entries_that_the_code_has_left_behind_are_named() -> None:
    (mutant, *_) = mutants("agents/search/mcts_scores.py", (ROOT / "agents/search/mcts_scores.py").read_text())
    assert left_behind({mutant.place}) == []
    gone = (*mutant.place[:2], "x = 1", "x = 2")
    assert left_behind({mutant.place, gone}) == [gone]


def test_a_file_of_a_linked_room_is_imported_by_its_full_name() -> None:
    assert module_name("agents/search/mcts.py") == "envgym.agents.search.mcts"
    assert module_name("envgym/core/segments.py") == "envgym.core.segments"
    assert Path(ROOT, "agents/search/mcts.py").exists()
