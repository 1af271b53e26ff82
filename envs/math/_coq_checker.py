"""Coq in sandboxes, kept running and shared by all proofs of a process.

A checker is at one state, which is a list of sentences from the start. To go to another one, it takes back what the two
lists do not share and says the rest; what Coq prints must then be what it printed the first time.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path

from envgym.authoring.warm_pool import WarmPool
from envgym.envs.math._coq_text import read_reply
from envgym.errors import EnvFailure, InvalidInput, ToolInfraFailure
from envgym.sandbox import MIB, Limits, PythonSession, RunEnding, has_program

PROGRAM = "coqtop"
_ARGV = (PROGRAM, "-q", "-emacs", "-w", "none", "-native-compiler", "no", "-color", "no")
_WIDTH = "Set Printing Width 100."
_SHOW = "Show."
MAX_CHECKERS = 4
"""Running at the same time in one process."""
MAX_SENTENCES = 5000
"""A checker is replaced after so many: what Coq remembers grows."""
WALL_FACTOR = 6.0
"""Real seconds allowed per second of processor time, so that a busy machine does not stop what is short."""
WAIT_S = 20.0
"""Real seconds allowed besides."""
LONG_S = 120.0
"""Seconds of processor time for what is ours: libraries, definitions and what is said again."""
_LIMITS = Limits(memory=1024 * MIB, processes=16, output=4 * MIB)
_OUT_OF_MEMORY = ("out of memory", "stack overflow")


class ProofReplayDiffers(EnvFailure):
    """Sentences that are said again print something else."""


@dataclass(frozen=True, slots=True)
class ProofStep:
    """A sentence that Coq has accepted, and what it printed."""

    sentence: str
    printed: str
    """The goals after it; of a command what it prints."""
    is_command: bool = False


@dataclass(frozen=True, slots=True)
class SentenceRefused:
    """A sentence that Coq has not accepted, and why; the state is as before."""

    sentence: str
    message: str


class CheckerLost(Exception):
    """Coq has ended, or was ended; `limit` says in words by which limit, nothing where there was none."""

    def __init__(self, limit: str, printed: str = "") -> None:
        super().__init__(limit or f"Coq {printed[-200:].strip() or 'has ended'}")
        self.limit = limit


def check_installed(where: str) -> None:
    """See that sandboxes have Coq. Raises: InvalidInput: they have not."""
    do = "install it (Debian: apt install coq)"
    InvalidInput.unless(has_program(PROGRAM), "Coq", "be installed below /usr", "no coqtop", where=where, do=do)


class CoqChecker:
    """One running Coq; used by one thread at a time."""

    def __init__(self) -> None:
        """Start it. Raises: ToolInfraFailure: there is none, or it does not start."""
        self._session = PythonSession(_LIMITS)
        self._state = 0
        """What Coq calls the state that it is in."""
        self._states: list[int] = []
        """After each step."""
        self.steps: list[ProofStep] = []
        """What it has been told."""
        self.num_said = 0
        self.cpu_s = 0.0
        """Processor time of all that was said, in seconds."""
        self.is_lost = False
        try:
            begun = self._session.run(f"{_guest()}\ncoq = Coq({[*_ARGV]!r})")
            if begun.error is not None:
                raise CheckerLost("", begun.output)
            self._ask([], LONG_S)
            self._ask([_WIDTH], LONG_S)
            self._start = self._state
        except CheckerLost as loss:
            self.close()
            raise broken("start", str(loss)) from None
        except BaseException:
            self.close()
            raise

    def num_shared(self, steps: Sequence[ProofStep]) -> int:
        """Count the steps from the start that it need not say again."""
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.steps, steps, strict=False)))

    def go_to(self, steps: Sequence[ProofStep]) -> None:
        """Go to a state. Raises: CheckerLost. ProofReplayDiffers: Coq prints something else than before."""
        num_shared = self.num_shared(steps)
        missing = steps[num_shared:]
        self.undo(len(self.steps) - num_shared)
        for step, again in zip(missing, self._say_all(missing, LONG_S * (1 + len(missing))), strict=False):
            if again != step:
                must, got, do = f"print {step.printed!r:.300}", f"{again!r:.300}", "begin the episode again"
                raise ProofReplayDiffers.of(f"{step.sentence:.100} said again", must, got, where="Coq", do=do)

    def say(self, sentence: str, *, is_command: bool = False, cpu_s: float = LONG_S) -> ProofStep | SentenceRefused:
        """Say a sentence. Raises: CheckerLost: it takes too long, or Coq ended."""
        return self._say_all([ProofStep(sentence, "", is_command)], cpu_s)[0]

    def undo(self, count: int) -> None:
        """Take back the last sentences. Raises: CheckerLost."""
        if count:
            num_left = len(self.steps) - count
            target = self._states[num_left - 1] if num_left else self._start
            self._ask([f"BackTo {target}."], LONG_S)
            if self._state != target:
                raise CheckerLost("", f"went back to state {self._state} instead of {target}")
            del self.steps[num_left:], self._states[num_left:]

    def _say_all(self, steps: Sequence[ProofStep], cpu_s: float = LONG_S) -> list[ProofStep | SentenceRefused]:
        if not steps:
            return []
        before = self._state
        replies = iter(
            self._ask([text for step in steps for text in (step.sentence, *[_SHOW][step.is_command :])], cpu_s)
        )
        results: list[ProofStep | SentenceRefused] = []
        for step in steps:
            printed, state = next(replies)
            if state == before:
                message = printed.removeprefix("Error:").strip()
                if message.lower().startswith(_OUT_OF_MEMORY[0]):  # Coq goes on, but for how long
                    self.close()
                    raise CheckerLost(_LIMIT_WORDS[RunEnding.MEMORY])
                return [*results, SentenceRefused(step.sentence, message)]
            if not step.is_command:
                printed, state = next(replies)
            before = state
            self.steps.append(ProofStep(step.sentence, printed, step.is_command))
            results.append(self.steps[-1])
            self._states.append(state)
        return results

    def close(self) -> None:
        self.is_lost = True
        self._session.close()

    def _ask(self, sentences: Sequence[str], cpu_s: float) -> list[tuple[str, int]]:
        self._session.limits = replace(_LIMITS, cpu_s=cpu_s, wall_s=WALL_FACTOR * cpu_s + WAIT_S)
        self.num_said += len(sentences)
        done = self._session.run(f"print(coq.answer({json.dumps(list(sentences))!r}))")
        if done.ending is not RunEnding.EXITED or done.error is not None:
            self.close()
            raise CheckerLost(_LIMIT_WORDS.get(done.ending, ""), done.output)
        answer = json.loads(done.output)
        self.cpu_s += answer["cpu_s"]
        replies = [read_reply(text) for text in answer["replies"]]
        answered = [reply for reply in replies if reply is not None]
        if len(answered) < len(replies):
            self.close()
            text = next(text for text, reply in zip(answer["replies"], replies, strict=True) if reply is None)
            is_full = any(words in text.lower() for words in _OUT_OF_MEMORY)
            raise CheckerLost(_LIMIT_WORDS[RunEnding.MEMORY] if is_full else "", text)
        self._state = answered[-1][1]
        return answered


_LIMIT_WORDS = {
    RunEnding.CPU_TIME: "takes too long",
    RunEnding.WALL_TIME: "takes too long",
    RunEnding.MEMORY: "needs too much memory",
    RunEnding.PROCESSES: "starts too many processes",
    RunEnding.OUTPUT: "prints too much",
}


class CheckerPool(WarmPool[CoqChecker, Sequence[ProofStep]]):
    def start(self) -> CoqChecker:
        """Start a checker. Raises: ToolInfraFailure: there is no Coq, or it does not start."""
        return CoqChecker()

    def choose(self, idle: Sequence[CoqChecker], state: Sequence[ProofStep], *, has_room: bool) -> CoqChecker | None:
        """Choose the checker that has the least to say again; one that knows nothing of it only without room."""
        best = max(idle, key=lambda checker: checker.num_shared(state), default=None)
        return best if best is not None and (best.num_shared(state) or not has_room) else None

    @contextmanager
    def at(self, steps: Sequence[ProofStep]) -> Iterator[CoqChecker]:
        """Give a checker at a state, the one with the least to say again; a lost one is replaced once.

        Raises: ToolInfraFailure: Coq does not start, or ends while it says again what it said before.
            ProofReplayDiffers: it prints something else.
        """
        checker = self.take(steps)
        try:
            try:
                checker.go_to(steps)
            except CheckerLost:
                checker.close()
                checker = self.start()
                try:
                    checker.go_to(steps)
                except CheckerLost as loss:
                    raise broken("go to a state that it was in before", str(loss)) from None
            yield checker
        except BaseException:  # nobody knows what it was told last
            checker.close()
            raise
        finally:
            if checker.num_said > MAX_SENTENCES:
                checker.close()
            self.give_back(checker)


@cache
def shared_checkers() -> CheckerPool:
    return CheckerPool(min(MAX_CHECKERS, max(2, os.cpu_count() or 1)))


@cache
def _guest() -> str:
    return Path(__file__).with_name("_coq_guest.py").read_text(encoding="utf-8")


def broken(must: str, got: str) -> ToolInfraFailure:
    return ToolInfraFailure.of("Coq", f"be able to {must}", got, where="checker", do="run coqtop to see why")
