"""Writes reports."""

from stockroom.money import show_price


def table(header, rows):
    """Return a table in columns; numbers go to the right, texts to the left."""
    cells = [[_shown(cell) for cell in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(header, *cells, strict=True)]
    is_number = [bool(rows) and all(isinstance(row[index], (int, float)) for row in rows) for index in range(len(header))]
    lines = [_line(header, widths, is_number), "  ".join("-" * width for width in widths)]
    lines += [_line(row, widths, is_number) for row in cells]
    return "\n".join(lines)


def _shown(cell):
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.2f}" if isinstance(cell, float) else str(cell)


def _line(texts, widths, is_number):
    aligned = [
        text.rjust(width) if number else text.ljust(width)
        for text, width, number in zip(texts, widths, is_number, strict=True)
    ]
    return "  ".join(aligned).rstrip()


def value_by(stock, key):
    """Return (group, cents) by what `key` says of a part; the most valuable first, then by name."""
    totals = {}
    for sku, part in stock.parts.items():
        group = key(part)
        totals[group] = totals.get(group, 0) + part.price * stock.count(sku)
    return sorted(totals.items(), key=lambda item: (-item[1], item[0]))


def summary(stock):
    """Return a report of all parts in stock, sorted by sku, with a line for all."""
    rows = [
        [sku, part.name, stock.count(sku), show_price(part.price * stock.count(sku))]
        for sku, part in sorted(stock.parts.items())
        if stock.count(sku)
    ]
    rows.append(["total", "", sum(row[2] for row in rows), show_price(stock.value())])
    return table(["sku", "name", "count", "value"], rows)
