"""Math: equality of expressions, hostile expressions, and processes that are killed, restarted and waited for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.errors import EnvFailure, InvalidInput
from envgym.verifiers import Math, processes
from envgym.verifiers import math as math_module
from envgym.verifiers.processes import Worker, WorkerDied, WorkerHung, WorkerPool

WORKER = "envgym.verifiers.math_worker"


def judge(answer: str, key: JsonValue, verifier: Math | None = None) -> tuple[float, str]:
    verdict = (verifier or Math())(answer, Task(id="t", prompt="", payload={"answer": key}, split=Split.TRAIN))
    return verdict.score, verdict.reason


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    """A pool of its own, so that a test may kill its processes."""
    pool = WorkerPool(WORKER, 1)
    monkeypatch.setattr(math_module, "_pool", lambda: pool)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "answer, key",
    [
        ("2+2", "4"), (r"\boxed{0.5}", r"\frac{1}{2}"), ("$(x+1)^2$", "x^2+2x+1"), (r"\sqrt{2}", "sqrt(2)"),
        ("8", "2**3"), ("x = 4", "4"), ("4", "x=4"), (r"\{2, 1\}", r"\{1, 2\}"), ("1,234", 1234),
        ("$\\frac{3}{4}$", ["7", "0.75"]),
        ("we get $x+1$, that is, $x+1$", "1+x"), ("(1, 2)", "(1,2)"),
    ],
)  # fmt: skip
def test_equal_expressions_score_one(answer: str, key: JsonValue) -> None:
    assert judge(answer, key)[0] == 1.0


@pytest.mark.parametrize("answer, key", [("5", "4"), ("-4", "4"), ("0", "-7"), ("999999999998", "999999999999")])
def test_whole_numbers_that_differ_are_judged_without_a_process_as_math_verify_judges_them(
    answer: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = math_module.compare(key, answer, 5)
    monkeypatch.delattr(math_module, "compare")
    assert compared is not None
    assert judge(answer, key) == (0.0, "not equal to the key") == (compared.score, compared.reason)


@pytest.mark.parametrize(
    "answer",
    [
        "5", "1, 2, 3, 4, 5", r"\{3, 4\}", "x = 3 or x = 4", "$3$ or $4$", r"\boxed{3} \boxed{4}", "",
        "$$", "nan", "\\infty", "y", "4=5", "the answer is five", "\u0664", "4$ $5", "\\int", "{", "\\frac{4}{0}",
    ],
)  # fmt: skip
def test_other_expressions_and_several_score_zero(answer: str) -> None:
    assert judge(answer, "4")[0] == 0.0


@pytest.mark.parametrize(
    "answer", ["10^10^10", "9^{9^9}", "2^{99999}", "9999!", "9" * 500, "x" * 2000, "((9^{99})^{99})^9"]
)
def test_a_huge_expression_is_refused_before_it_is_evaluated(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_module, "_pool", lambda: pytest.fail("evaluated"))
    assert judge(answer, "4") == (0.0, "the expression is too big")


@pytest.mark.slow
def test_a_hanging_answer_scores_zero_and_the_next_one_is_judged(pool: WorkerPool) -> None:
    hanging = r"(1+x)^{9999}(1-x)^{9999}"
    assert judge(hanging, "4", Math(cpu_s=1)) == (0.0, "comparing the answer took more than 1 s")
    assert judge("2+2", "4")[0] == 1.0


def test_a_key_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="be an expression that math-verify reads"):
        judge("5", r"\int \int")
    with pytest.raises(InvalidInput, match="be one expression"):
        judge("5", "$3$ or $4$")


def test_a_lost_process_is_replaced_and_the_answer_is_judged(pool: WorkerPool) -> None:
    assert judge("2+2", "4")[0] == 1.0
    os.kill(pool._workers[0]._process.pid, signal.SIGKILL)
    assert judge("3+1", "4")[0] == 1.0


def test_a_process_that_cannot_start_is_a_failure_of_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_module, "_pool", lambda: WorkerPool("envgym.no_such_module", 1))
    with pytest.raises(EnvFailure) as caught:
        judge("2+2", "4")
    assert str(caught.value) == (
        "helper process must start, got exit code 1 (envgym.no_such_module); "
        "run `python -m envgym.no_such_module` to see why."
    )


def test_process_that_does_not_get_ready_is_killed_and_is_a_failure_of_the_env(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "START_S", 0.0)
    with pytest.raises(EnvFailure, match=r"must start within 0 s, got no answer \(envgym\.verifiers"):
        Worker(WORKER)


def test_threads_share_the_processes(pool: WorkerPool) -> None:
    with ThreadPoolExecutor(8) as threads:
        scores = list(threads.map(lambda n: judge(f"{n}+1", str(n + (n % 2))), range(40)))
    assert [score for score, _ in scores] == [float(n % 2) for n in range(40)]
    assert len(pool._workers) == 1


def test_a_stopped_process_is_killed_and_waited_for() -> None:
    worker = Worker(WORKER)
    os.kill(worker._process.pid, signal.SIGSTOP)
    worker.send({"key": "4", "answer": "4", "cpu_s": 1})
    with pytest.raises(WorkerHung, match=r"no answer after 0\.2 s"):
        worker.receive(0.2)
    assert worker._process.returncode == -signal.SIGKILL  # waited for: no zombie is left


def test_a_dead_process_is_noticed_when_it_is_asked() -> None:
    worker = Worker(WORKER)
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.wait()
    with pytest.raises(WorkerDied, match="ended with code -9"):
        worker.send({"key": "4", "answer": "4", "cpu_s": 1})
    with pytest.raises(WorkerDied, match="ended with code -9"):
        worker.receive(10)
    worker.forget()


def test_a_request_that_was_broken_off_does_not_answer_the_next_one(pool: WorkerPool) -> None:
    def broken(worker: Worker) -> None:
        worker.send({"key": "4", "answer": "5", "cpu_s": 5})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.use(broken)
    assert judge("2+2", "4")[0] == 1.0


def test_no_process_outlives_its_user() -> None:
    code = (
        "from envgym.verifiers import math; math.compare('4', '2+2', 5);"
        "print(math._pool()._workers[0]._process.pid, flush=True);"
        "import os; os._exit(0)"  # no clean-up runs
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, state = int(done.stdout), "unknown"
    for _ in range(600):  # it ends when it sees its input end; who adopted it may be slow to collect it
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
        if not state or state.startswith("Z"):
            break
        time.sleep(0.05)
    assert not state or state.startswith("Z")


def test_a_forked_child_uses_processes_of_its_own(pool: WorkerPool) -> None:
    assert judge("2+2", "4")[0] == 1.0
    worker = pool._workers[0]
    pid = os.fork()
    if pid == 0:
        is_right = judge("3+1", "4")[0] == 1.0 and pool._workers[0] is not worker
        pool.close()
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert worker.is_alive
    assert judge("1+3", "4")[0] == 1.0
