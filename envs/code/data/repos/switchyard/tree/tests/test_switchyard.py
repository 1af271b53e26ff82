"""Machines, events and timers."""

import unittest

from switchyard import Bus, Machine, NoTransition, Timers, reachable, shortest

DOOR = {("open", "push"): "closed", ("closed", "pull"): "open", ("closed", "lock"): "locked"}


class Machines(unittest.TestCase):
    """States."""

    def test_events_lead_on(self):
        machine = Machine("open", DOOR)
        self.assertEqual(machine.send("push"), "closed")
        self.assertEqual(machine.history, ["open", "closed"])
        with self.assertRaises(NoTransition):
            machine.send("push")

    def test_calls(self):
        machine = Machine("open", DOOR)
        seen = []
        machine.on_enter("closed", lambda old, new: seen.append((old, new)))
        machine.send("push")
        self.assertEqual(seen, [("open", "closed")])

    def test_paths(self):
        self.assertEqual(shortest(DOOR, "open", "locked"), ["push", "lock"])
        self.assertEqual(reachable(DOOR, "open"), ["closed", "locked", "open"])


class Events(unittest.TestCase):
    """Listeners."""

    def test_listeners_are_called(self):
        bus = Bus()
        seen = []
        bus.listen("door.*", lambda name, value: seen.append((name, value)))
        self.assertEqual(bus.publish("door.closed", 7), 1)
        self.assertEqual(bus.publish("window.closed", 7), 0)
        self.assertEqual(seen, [("door.closed", 7)])

    def test_stop(self):
        bus = Bus()
        stop = bus.listen("a", lambda name: None)
        stop()
        self.assertEqual(bus.publish("a"), 0)


class Time(unittest.TestCase):
    """Timers."""

    def test_calls_come_in_order(self):
        timers = Timers()
        seen = []
        timers.after(2, lambda: seen.append("b"))
        timers.after(1, lambda: seen.append("a"))
        self.assertEqual(timers.advance(3), 2)
        self.assertEqual(seen, ["a", "b"])

    def test_cancel(self):
        timers = Timers()
        timers.cancel(timers.after(1, print))
        self.assertEqual(timers.advance(2), 0)


if __name__ == "__main__":
    unittest.main()
