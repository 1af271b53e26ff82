"""Counts parts."""

from stockroom.ledger import Movement, Stock, StockProblem
from stockroom.money import read_price, show_price
from stockroom.parts import FormatProblem, Part, read_parts, write_parts
from stockroom.reports import summary, table, value_by

__all__ = [
    "FormatProblem",
    "Movement",
    "Part",
    "Stock",
    "StockProblem",
    "read_parts",
    "read_price",
    "show_price",
    "summary",
    "table",
    "value_by",
    "write_parts",
]
