"""Time `math/proofs-v0` with warm checkers: `python -m benchmarks.proofs [--seconds S]`, one JSON line.

`tactics_per_s` counts the tactics of whole episodes of the oracle, played by one and by two threads, with reset
and the kernel's check; `step_ms` is the median turn. `fork_us` is a fork alone; `fork_step_ms` is the
first turn of a fork in the middle of a proof while its checker is at another fork of the same proof, which is one step
back and one tactic; `other_proof_ms` is a turn where the checker was at another theorem, so that all of the proof is
said again.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import envgym
from envgym.core.tasks import Split
from envgym.envs.math.proofs import Proofs


def main() -> None:
    """Take every measure, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measure of speed (default %(default)s)")
    seconds = parser.parse_args().seconds
    _play(0, 2.0)  # starts a checker, and loads its libraries
    one, steps = _play(0, seconds)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_play, range(2), [2.0] * 2))
        both = [rate for rate, _ in pool.map(_play, range(2), [seconds] * 2)]
    figures = {"tactics_per_s_1_thread": one, "tactics_per_s_2_threads": sum(both), "step_ms": 1000 * median(steps)}
    print(json.dumps({name: round(value, 2) for name, value in (figures | _forks()).items()}))


def _made() -> Proofs:
    env = envgym.make("math/proofs-v0", max_turns=1000).unwrapped
    assert isinstance(env, Proofs)
    return env


def _play(first: int, seconds: float) -> tuple[float, list[float]]:
    """Let the oracle prove theorems for a while; return the tactics of a second, and the seconds of each turn."""
    env, index, taken = _made(), first, list[float]()
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        env.reset(options={"split": "train", "index": index})
        index, is_over = index + 2, False
        while not is_over:
            tactic, start = env.oracle(), time.perf_counter()
            result = env.step(tactic)
            is_over = result.terminated or result.truncated
            taken.append(time.perf_counter() - start)
    return len(taken) / (time.perf_counter() - begun), taken


def _forks() -> dict[str, float]:
    """Return what forks cost."""
    env, others = _made(), [_made() for _ in range(4)]  # as many as there may be checkers
    task = env.tasks.task(Split.TRAIN, 11)  # a proof of several tactics
    env.reset(options={"task": task})
    for _ in range(3):
        env.step(env.oracle())
    for number, other in enumerate(others):
        other.reset(options={"split": "train", "index": number})
    forking, hopping, leaving = list[float](), list[float](), list[float]()
    for round_ in range(40):
        begun = time.perf_counter()
        forks = [env.fork() for _ in range(2)]
        forking.append((time.perf_counter() - begun) / 2)
        for fork in forks:
            begun = time.perf_counter()
            fork.step(f"pose proof (eq_refl {round_}).")
            hopping.append(time.perf_counter() - begun)
        for other in others:
            other.step("idtac.")
        begun = time.perf_counter()
        forks[0].step("idtac.")
        leaving.append(time.perf_counter() - begun)
        for other in others:
            other.step("Undo.")
    return {
        "fork_us": 1e6 * median(forking),
        "fork_step_ms": 1000 * median(hopping),
        "other_proof_ms": 1000 * median(leaving),
    }


if __name__ == "__main__":
    main()
