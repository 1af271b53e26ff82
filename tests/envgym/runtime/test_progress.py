"""Progress: a line per phase, none silent for long, and how much time is left."""

import re
import sys
import threading
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest

from envgym.runtime.processes.process import ProcessState
from envgym.runtime.progress import ProgressDisplay, duration


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def display(clock: Clock, capsys: pytest.CaptureFixture[str]) -> Iterator[ProgressDisplay]:
    made = ProgressDisplay(quiet=("collect",), clock=clock)
    yield made
    made.close()


def test_phase_has_one_line_with_its_detail_and_its_time(
    display: ProgressDisplay, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    display("warm start", 0, 8)
    for update in range(1, 9):
        clock.now += 2.0
        display("warm start", update, 8, f"loss {1 / update:.3g}")
    assert capsys.readouterr().err == "warm start: 8/8, loss 0.125, 16 s\n"


def test_long_phase_is_heard_of_every_half_minute_with_the_time_that_is_left(
    display: ProgressDisplay, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    display("evaluate held-out", 100, 400)  # resumed: 100 took no time of this process
    for done in range(101, 401):
        clock.now += 0.5
        display("evaluate held-out", done, 400)
    assert capsys.readouterr().err.splitlines() == [
        "evaluate held-out: 160/400, 30 s, about 2 min 00 s left",
        "evaluate held-out: 220/400, 60 s, about 90 s left",
        "evaluate held-out: 280/400, 90 s, about 60 s left",
        "evaluate held-out: 340/400, 2 min 00 s, about 30 s left",
        "evaluate held-out: 400/400, 2 min 30 s",
    ]


def test_silent_phase_is_heard_of(display: ProgressDisplay, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    clock.now = 31.0
    display.beat()  # a model that takes long to load
    display("learn", 0, 24)
    for clock.now in (60.0, 61.0, 62.0, 91.0):
        display.beat()
    assert capsys.readouterr().err.splitlines() == [
        "no result yet, 31 s",
        "learn: 0/24, 30 s",
        "learn: 0/24, 60 s",
    ]


def test_quiet_phase_has_no_line_unless_it_is_long(
    display: ProgressDisplay, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    display("collect", 0, 2)
    display("collect", 2, 2)
    assert capsys.readouterr().err == ""
    display("collect", 0, 2)
    clock.now = 30.0
    display("collect", 1, 2)
    assert capsys.readouterr().err == "collect: 1/2, 30 s, about 30 s left\n"


def test_open_display_beats_by_itself_until_it_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    seconds, beaten = count(step=40), threading.Event()
    before = threading.active_count()

    def clock() -> float:
        if threading.current_thread().name == "progress":
            beaten.set()
        return float(next(seconds))

    with ProgressDisplay(clock=clock):
        assert beaten.wait(60)
    for thread in threading.enumerate():
        if thread.name == "progress":
            thread.join()
    assert threading.active_count() == before
    assert capsys.readouterr().err.startswith("no result yet, ")


def test_what_terminals_obey_is_written_out(display: ProgressDisplay, capsys: pytest.CaptureFixture[str]) -> None:
    display("evaluate \x1b[2J", 1, 1)
    assert capsys.readouterr().err == "evaluate \\u001b[2J: 1/1, 0 s\n"


def test_terminal_shows_the_same_numbers_as_lines(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    display = ProgressDisplay(clock=clock)
    display._bars.start()
    display("warm start", 0, 4, "loss 2")
    clock.now = 5.0
    display("warm start", 1, 4, "loss 1.5")
    display._bars.refresh()
    display("warm start", 4, 4, "loss 1")
    display.close()
    shown = capsys.readouterr().err
    assert "warm start: 1/4, loss 1.5, 5 s, about 15 s left" in shown
    assert "warm start: 4/4, loss 1, 5 s" in shown


class Cell:
    """The one output that a front end shows of a cell: the newest text that was sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_outputs, self.texts = 0, list[str]()
        kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel="ours"))
        monkeypatch.setitem(sys.modules, "IPython", kernel)
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=self.display))
        monkeypatch.setenv("FORCE_COLOR", "1")  # as a kernel does

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> "Cell":
        assert (raw, display_id) == (True, True)
        self.num_outputs += 1
        self.update(data, raw=raw)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.texts.append(data["text/plain"])


def test_notebook_has_one_output_with_the_same_numbers(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(monkeypatch)
    with ProgressDisplay(quiet=("collect",), clock=clock) as display:
        display("warm start", 0, 4, "loss 2")
        clock.now = 5.0
        display("warm start", 1, 4, "loss 1.5")
        display("collect", 3, 3)
        display.beat()
        assert cell.texts[-1] == "██████░░░░░░░░░░░░░░░░░░ warm start: 1/4, loss 1.5, 5 s, about 15 s left"
        display("warm start", 4, 4, "loss 1")
        for step in range(1, 101):
            display.print(f"step {step}")
    assert cell.num_outputs == 1
    assert cell.texts[-1].splitlines() == [f"step {step}" for step in range(77, 101)]
    assert len(cell.texts) < 20  # sent twice a second, not with every line
    assert capsys.readouterr() == ("", "")


def test_notebook_has_no_empty_output_where_work_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(monkeypatch)
    with ProgressDisplay():
        pass
    assert cell.num_outputs == 0


def test_cell_writes_lines(clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("JPY_PARENT_PID", "7")
    with ProgressDisplay(clock=clock) as display:
        display("warm start", 1, 4)
        display("warm start", 4, 4, "loss 1")
    assert capsys.readouterr().err == "warm start: 4/4, loss 1, 0 s\n"


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.4, "0 s"),
        (119.4, "119 s"),
        (119.6, "2 min 00 s"),
        (725, "12 min 05 s"),
        (7199.6, "2 h 00 min"),
        (12000, "3 h 20 min"),
    ],
)
def test_duration_is_in_the_units_that_a_person_reads(seconds: float, text: str) -> None:
    assert duration(seconds) == text


STATES = [
    ProcessState("env-server-0", 41, "starting", 1.0, 0.0, ""),
    ProcessState("learner-1", 42, "running", 1.0, 9, ""),
]


def test_process_has_a_line_whenever_its_state_changes(
    display: ProgressDisplay, clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = list(STATES)
    monkeypatch.setattr("envgym.runtime.progress.process_states", lambda: states)
    for clock.now in (1.0, 2.0):
        display.beat()
    states[0] = states[0]._replace(state="running", memory_mib=1234.4, seconds=130.0)
    display.beat()
    states[0] = states[0]._replace(state="the signal SIGKILL", last_line="out of memory\x1b[0m")
    display.beat()
    states.clear()
    display.beat()
    assert capsys.readouterr().err.splitlines() == [
        "env-server-0: starting, 1 s, 0 MiB",
        "learner-1: running, 1 s, 9 MiB",
        "env-server-0: running, 2 min 10 s, 1,234 MiB",
        "env-server-0: the signal SIGKILL, 2 min 10 s, 1,234 MiB, out of memory\\u001b[0m",
    ]


def test_processes_stand_below_the_bars(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("envgym.runtime.progress.process_states", lambda: STATES)
    with ProgressDisplay() as display:
        display("collect", 1, 4)
        display.beat()
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in capsys.readouterr().err.splitlines()]
    assert any(re.fullmatch(r"━+ *╺?━* +collect: 1/4, .*", line) for line in lines), lines
    assert " " * 25 + "env-server-0: starting, 1 s, 0 MiB" in lines
    assert " " * 25 + "learner-1: running, 1 s, 9 MiB" in lines
