"""The script that measures chance scores: what it writes into the files that environments read."""

import pytest

from scripts.chance_answers import ChanceTable
from scripts.measure_chance import ENVS, TABLES, with_row


def test_a_row_is_replaced_added_at_the_end_of_its_section_or_removed() -> None:
    text = "# About.\na = 1\n\n# Why.\n[b]\nc = 2\n\n[d]\ne = 3\n"
    assert with_row(text, ("d", "e", "4")) == text.replace("e = 3", "e = 4")
    assert with_row(text, ("b", "x", "9")) == text.replace("c = 2\n", "c = 2\nx = 9\n")
    assert with_row(text, ("b", "e", "9")) == text.replace("c = 2\n", "c = 2\ne = 9\n")
    assert with_row(text, ("", "a", "")) == text.replace("a = 1\n", "")


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_same_rows_leave_a_file_as_it_is(table: ChanceTable) -> None:
    text = (ENVS / table.path).read_text(encoding="utf-8")
    section = ""
    for line in text.splitlines():
        section = line.strip("[]") if line.startswith("[") else section
        if " = " in line and not line.startswith("#"):
            key, _, value = line.partition(" = ")
            assert with_row(text, (section, key, value)) == text
