"""Bookings that come again."""

from datetime import date, timedelta


def occurrences(first, every, until, unit="days", skip=()):
    """Return the dates of something that comes again, up to and with `until`, without those in `skip`.

    In months, the day stays that of `first`; where a month has no such day, its last one is taken.
    """
    if every < 1:
        raise ValueError("every must be at least 1")
    if unit not in ("days", "weeks", "months"):
        raise ValueError(f"unknown unit {unit!r}")
    found = []
    count = 0
    while (day := _later(first, count * every, unit)) <= until:
        if day not in skip:
            found.append(day)
        count += 1
    return found


def _later(day, number, unit):
    if unit == "months":
        years, month = divmod(day.month - 1 + number, 12)
        year = day.year + years
        return date(year, month + 1, min(day.day, _last_day(year, month + 1)))
    return day + timedelta(days=number * (7 if unit == "weeks" else 1))


def _last_day(year, month):
    following = date(year + month // 12, month % 12 + 1, 1)
    return (following - timedelta(days=1)).day
