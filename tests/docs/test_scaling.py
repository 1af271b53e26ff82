"""The page on scaling: its sizing table is the one that its script writes."""

import pytest

from scripts import sizing_table


@pytest.mark.docs
def test_the_sizing_table_is_the_one_that_the_script_writes() -> None:
    head, rule, row = sizing_table.table(["0.5B"]).splitlines()
    match = sizing_table.MARKS.search(sizing_table.PAGE.read_text(encoding="utf-8"))
    assert match is not None
    written = match[0].splitlines()
    assert {head, rule, row} <= set(written), "run `python scripts/sizing_table.py`"
    assert len([line for line in written if line.startswith("|")]) == 8
