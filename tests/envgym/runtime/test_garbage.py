"""Garbage collections are rare within a block, and nothing is lost to later ones."""

import gc
import json
import subprocess
import sys
from typing import Any

import pytest

from envgym.runtime import garbage
from envgym.runtime.garbage import rare_collections

LIMIT = 5_000
PROGRAM = f"""
import gc, json
from envgym.runtime import garbage
from envgym.runtime.garbage import rare_collections

class Cyclic:
    "Garbage that reference counts do not free."
    alive = 0
    def __init__(self):
        self.itself = self
        Cyclic.alive += 1
    def __del__(self):
        Cyclic.alive -= 1

def most_alive(num_runs, num_cycles, **options):
    "Return how many cycles lived at most, where every run makes so many and keeps none."
    most = 0
    for _ in range(num_runs):
        with rare_collections(**options):
            for _ in range(num_cycles):
                Cyclic()
                most = max(most, Cyclic.alive)
    return most

garbage._NEW_OBJECTS, garbage._MAX_POSTPONED = {LIMIT}, {2 * LIMIT}
gc.set_threshold(700, 10, 10)
gc.collect()
"""


def printed_by(code: str) -> Any:  # JSON
    done = subprocess.run([sys.executable, "-c", PROGRAM + code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_garbage_of_episodes_that_leave_cycles_is_freed_as_usual() -> None:
    assert printed_by("print(most_alive(1, 30_000, leaves_cycles=True))") <= 700


def test_garbage_in_cycles_is_bounded_within_a_run_and_over_many() -> None:
    code = "most = [most_alive(1, 30_000), most_alive(16, 2_000)]\ngc.collect()\nprint([*most, Cyclic.alive])"
    within_a_run, over_many, after_all = printed_by(code)
    assert 4_000 < within_a_run <= LIMIT
    assert 8_000 < over_many <= 3 * LIMIT
    assert after_all == 0, "what was put off was not lost"


def test_what_a_run_keeps_is_not_looked_at_when_it_ends() -> None:
    code = """
collections = []
def note(phase, info):
    collections.append(info)
with rare_collections():
    gc.callbacks.append(note)
    kept = [[] for _ in range(3_000)]
for _ in range(300):
    kept.append([])
gc.callbacks.remove(note)
print(json.dumps([collections, any(item is kept[0] for item in gc.get_objects(generation=2))]))
"""
    assert printed_by(code) == [[], True]


def test_what_the_caller_has_frozen_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_postponed", garbage._Postponed())
    before = gc.get_freeze_count()
    assert before > 0, "the tests freeze their modules"
    for _ in range(2):  # they are counted after the first run alone
        with rare_collections():
            pass
        assert abs(gc.get_freeze_count() - before) < 100
