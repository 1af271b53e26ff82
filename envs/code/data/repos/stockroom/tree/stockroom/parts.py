"""Lists of parts as CSV."""

import csv
import io
from dataclasses import dataclass

from stockroom.money import read_price, show_price

COLUMNS = ("sku", "name", "price", "minimum", "group")
REQUIRED = ("sku", "name", "price")


class FormatProblem(ValueError):
    """A list of parts that cannot be read."""


@dataclass(frozen=True)
class Part:
    """Something that is kept in stock."""

    sku: str
    name: str
    price: int
    minimum: int = 0
    group: str = ""


def read_parts(text):
    """Return the parts of a CSV text with a header, in their order. Raises FormatProblem, with the line's number."""
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    header = [cell.strip().lower() for cell in next(reader, [])]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise FormatProblem(f"line 1: no column {', '.join(missing)}")
    parts = {}
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"line {reader.line_num}"
        if len(cells) != len(header):
            raise FormatProblem(f"{where}: {len(cells)} cells, not {len(header)}")
        part = _part(dict(zip(header, (cell.strip() for cell in cells), strict=True)), where)
        if part.sku in parts:
            raise FormatProblem(f"{where}: {part.sku} is there already")
        parts[part.sku] = part
    return list(parts.values())


def _part(row, where):
    if not row["sku"]:
        raise FormatProblem(f"{where}: no sku")
    try:
        price = read_price(row["price"])
        minimum = int(row.get("minimum") or 0)
    except ValueError as error:
        raise FormatProblem(f"{where}: {error}") from None
    return Part(row["sku"].upper(), row["name"], price, minimum, row.get("group", ""))


def write_parts(parts):
    """Return parts as CSV, sorted by sku; `read_parts` gives them back."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for part in sorted(parts, key=lambda part: part.sku):
        writer.writerow([part.sku, part.name, show_price(part.price), part.minimum, part.group])
    return text.getvalue()
