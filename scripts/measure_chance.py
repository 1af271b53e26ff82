"""Measure what agents earn that act by chance, and write it into the files of chance scores that environments read.

Run: python -m scripts.measure_chance TABLE [ITEM ...] [--num N] [--out FILE]. Only the items that are named are
measured anew (default: all of the table). The file is written after each; its comments, which state the number of
tasks, stay. The agents are those of the environment (`chance_agents`, which the conformance check plays, too), or stand
in `scripts/chance_episodes.py` and `scripts/chance_answers.py`.
"""

import argparse
from pathlib import Path

from envgym.runs.files import write_atomic
from scripts import chance_answers, chance_episodes
from scripts.chance_answers import Row

ENVS = Path(__file__).resolve().parent.parent / "envs"
TABLES = {**chance_episodes.TABLES, **chance_answers.TABLES}


def with_row(text: str, row: Row) -> str:
    """Return a TOML file with one row replaced, added at the end of its section, or removed."""
    section, key, value = row
    lines, current, end = text.splitlines(), "", 0
    for place, line in enumerate(lines):
        current = line.strip("[]") if line.startswith("[") else current
        if current == section and line and not line.startswith("#"):
            end = place + 1
            if line.partition(" = ")[0] == key:
                lines[place : place + 1] = [f"{key} = {value}"] if value else []
                break
    else:
        lines[end:end] = [f"{key} = {value}"] if value else []
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the items of a table, and write its file after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES, metavar="TABLE", help=f"one of {', '.join(TABLES)}")
    parser.add_argument("items", nargs="*", metavar="ITEM", help="such as a kind, family or data set (default: all)")
    parser.add_argument("--num", type=int, help="tasks or episodes of each measure (default: those of the file)")
    parser.add_argument("--out", type=Path, help="file to write (default: that of the environment)")
    options = parser.parse_args()
    table = TABLES[options.table]
    text = (ENVS / table.path).read_text(encoding="utf-8")
    for item in options.items or table.items:
        for row in table.measure(item, options.num or table.num):
            print(*row, flush=True)
            text = with_row(text, row)
            write_atomic(options.out or ENVS / table.path, text)


if __name__ == "__main__":
    main()
