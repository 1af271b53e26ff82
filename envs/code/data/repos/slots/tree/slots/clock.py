"""Times as people write them: minutes since midnight as 9:30, spans as 9:30-11."""

import re

from slots.intervals import Interval

DAY = 24 * 60
_TIME = re.compile(r"\s*(\d{1,2})(?::(\d\d))?\s*(am|pm)?\s*", re.IGNORECASE)


def read_time(text):
    """Return the minutes since midnight; 24:00 is the end of the day."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"not a time: {text!r}")
    hours, minutes, half = int(match.group(1)), int(match.group(2) or 0), (match.group(3) or "").lower()
    if half:
        if not 1 <= hours <= 12:
            raise ValueError(f"not a time: {text!r}")
        hours = hours % 12 + (12 if half == "pm" else 0)
    total = 60 * hours + minutes
    if minutes >= 60 or total > DAY:
        raise ValueError(f"not a time: {text!r}")
    return total


def show_time(minutes):
    """Write minutes since midnight, with the day where it is not the first: 9:05, 1+0:30."""
    day, rest = divmod(minutes, DAY)
    text = f"{rest // 60}:{rest % 60:02}"
    return f"{day}+{text}" if day else text


def read_span(text):
    """Return the interval of a text as in 9:30-11; one that ends before it starts goes on over midnight."""
    first, dash, last = text.partition("-")
    if not dash:
        raise ValueError(f"not a span: {text!r}")
    start, end = read_time(first), read_time(last)
    return Interval(start, end if end > start else end + DAY)
