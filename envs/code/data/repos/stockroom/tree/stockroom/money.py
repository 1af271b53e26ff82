"""Prices: text outside, whole cents inside."""

import re

_PRICE = re.compile(r"\s*(-?)\s*\$?\s*(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d{1,2}))?\s*")


def read_price(text):
    """Return the cents of a text as in 1,234.50 or $7."""
    match = _PRICE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a price: {text!r}")
    sign, whole, part = match.groups()
    cents = 100 * int(whole.replace(",", "")) + int((part or "").ljust(2, "0"))
    return -cents if sign else cents


def show_price(cents):
    """Write cents as 1,234.50."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100:,}.{abs(cents) % 100:02}"


def discounted(cents, percent):
    """Return a price less some percent; half a cent is rounded up."""
    return (cents * (100 - percent) + 50) // 100
