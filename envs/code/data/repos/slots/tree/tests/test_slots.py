"""Intervals and calendars."""

import unittest
from datetime import date

from slots import Calendar, Conflict, Interval, merge, occurrences, plan, read_span, read_time, rooms_needed, subtract


class Intervals(unittest.TestCase):
    """Arithmetic."""

    def test_merge(self):
        self.assertEqual(merge([Interval(5, 8), Interval(1, 6)]), [Interval(1, 8)])
        self.assertEqual(merge([Interval(1, 2), Interval(4, 5)]), [Interval(1, 2), Interval(4, 5)])

    def test_subtract(self):
        self.assertEqual(subtract(Interval(0, 10), [Interval(2, 4)]), [Interval(0, 2), Interval(4, 10)])

    def test_rooms(self):
        self.assertEqual(rooms_needed([Interval(0, 5), Interval(1, 3), Interval(6, 7)]), 2)


class Calendars(unittest.TestCase):
    """Bookings."""

    def test_conflict(self):
        calendar = Calendar()
        calendar.book("a", Interval(0, 10))
        with self.assertRaises(Conflict):
            calendar.book("b", Interval(5, 15))

    def test_free(self):
        calendar = Calendar()
        calendar.book("standup", Interval(540, 555))
        self.assertEqual(calendar.free(Interval(480, 600), 30), [Interval(480, 540), Interval(555, 600)])

    def test_plan(self):
        day = [Interval(0, 100)]
        self.assertEqual(plan(day, [[Interval(10, 30)], [Interval(20, 60)]], 10), Interval(20, 30))


class Words(unittest.TestCase):
    """Times as people write them."""

    def test_times(self):
        self.assertEqual(read_time("9:30"), 570)
        self.assertEqual(read_span("9-10:15"), Interval(540, 615))

    def test_repeats(self):
        self.assertEqual(
            occurrences(date(2024, 1, 1), 1, date(2024, 1, 15), "weeks"),
            [date(2024, 1, 1), date(2024, 1, 8), date(2024, 1, 15)],
        )


if __name__ == "__main__":
    unittest.main()
