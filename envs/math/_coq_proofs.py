"""Proofs as lists of sentences: opening a theorem, going on, and seeing that it is proved."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from envgym.envs.math._coq_checker import (
    CheckerLost,
    CoqChecker,
    ProofStep,
    SentenceRefused,
    broken,
    shared_checkers,
)
from envgym.envs.math._coq_text import split_sentences

NAME = "goal"
"""Of a theorem whose statement gives no other one."""
_NAMED = re.compile(r"(?:Theorem|Lemma|Example|Corollary|Proposition|Fact|Remark)\s+([\w']+)")
_DONE = "No more goals."
_CLOSED = "Closed under the global context"


class TheoremRefused(Exception):
    """Coq refuses what comes before the proof; the message says which sentence, and why."""


@dataclass(frozen=True, slots=True)
class ProofLimits:
    """Seconds of processor time."""

    tactic_s: float
    """For one tactic, bullet or brace."""
    message_s: float
    """For all of a message together; the kernel's check of a proof may take as long again."""


@dataclass(frozen=True, slots=True)
class ProofAttempt:
    steps: tuple[ProofStep, ...]
    """Those before, and the new ones unless one of them failed."""
    failure: str = ""
    """Why one of them failed."""
    num_accepted: int = 0
    """Sentences before the one that failed."""
    is_proved: bool = False


def theorem_command(statement: str) -> str:
    """Return the command that states a theorem: a proposition, or a whole `Theorem NAME : ...`."""
    text = " ".join(statement.split()).removesuffix(".")
    return f"{text}." if _NAMED.match(text) else f"Theorem {NAME} : {text}."


def open_theorem(head: str, statement: str) -> tuple[ProofStep, ...]:
    """Say the commands before a theorem, and state it.

    Raises: TheoremRefused: Coq refuses one. ToolInfraFailure: there is no Coq that works.
    """
    commands = split_sentences(head)
    num_libraries = next((at for at, text in enumerate(commands) if not _is_library(text)), len(commands))
    for is_last in (False, True):
        try:
            with shared_checkers().at(_libraries(tuple(commands[:num_libraries]))) as checker:
                _state(checker, commands[num_libraries:], is_command=True)
                _state(checker, [theorem_command(statement)], is_command=False)
                return tuple(checker.steps)
        except CheckerLost as loss:
            if is_last:
                raise broken("state a theorem", str(loss)) from None
    raise AssertionError("the second attempt returns or raises")


def continue_proof(
    steps: tuple[ProofStep, ...], sentences: Sequence[str], limits: ProofLimits, axioms: frozenset[str]
) -> ProofAttempt:
    """Say tactics; where no goal is left, see that the theorem is proved.

    Args:
        steps: What was said before.
        sentences: As `read_tactic` returns them.
        limits: Of processor time.
        axioms: Names of those that a proof may rest on.

    Raises: ToolInfraFailure: Coq ends twice, by no limit. ProofReplayDiffers.
    """
    for is_last in (False, True):
        try:
            with shared_checkers().at(steps) as checker:
                return _continued(checker, steps, sentences, limits, axioms)
        except CheckerLost as loss:
            if loss.limit:
                return ProofAttempt(steps, f"The tactic {loss.limit}: it was stopped, and the goals are as before.")
            if is_last:
                raise broken("go on after a tactic", str(loss)) from None
    raise AssertionError("the second attempt returns or raises")


def _continued(
    checker: CoqChecker,
    steps: tuple[ProofStep, ...],
    sentences: Sequence[str],
    limits: ProofLimits,
    axioms: frozenset[str],
) -> ProofAttempt:
    end_s = checker.cpu_s + limits.message_s
    for number, sentence in enumerate(sentences):
        left_s = end_s - checker.cpu_s
        if left_s <= 0:
            return ProofAttempt(steps, f"The tactics take more than {limits.message_s:g} s together.", number)
        reply = checker.say(sentence, cpu_s=min(limits.tactic_s, left_s))
        if isinstance(reply, SentenceRefused):
            return ProofAttempt(steps, reply.message, number)
    all_steps = tuple(checker.steps)
    if all_steps[-1].printed != _DONE:
        return ProofAttempt(all_steps, num_accepted=len(sentences))
    why_not = _why_not_proved(checker, limits.message_s, axioms)
    if why_not:
        return ProofAttempt(steps, f"No goal is left, but this is no proof: {why_not}", len(sentences))
    return ProofAttempt(all_steps, num_accepted=len(sentences), is_proved=True)


def _why_not_proved(checker: CoqChecker, cpu_s: float, axioms: frozenset[str]) -> str:
    """Let Coq's kernel check the proof, and tell what it rests on; return what is wrong, nothing where all is well."""
    statement = next(step.sentence for step in reversed(checker.steps) if _NAMED.match(step.sentence))
    named = _NAMED.match(statement)
    assert named is not None
    saved = checker.say("Qed.", is_command=True, cpu_s=cpu_s)
    if isinstance(saved, SentenceRefused):
        return saved.message
    rests = checker.say(f"Print Assumptions {named[1]}.", is_command=True, cpu_s=cpu_s)
    if isinstance(rests, SentenceRefused):
        return rests.message
    if rests.printed.strip() == _CLOSED:
        return ""
    names = {line.split(" ")[0] for line in rests.printed.splitlines()[1:] if line and not line.startswith(" ")}
    extra = sorted(names - axioms)
    return f"it rests on {', '.join(extra)}" if extra or not names else ""


def _state(checker: CoqChecker, sentences: Sequence[str], *, is_command: bool) -> None:
    for sentence in sentences:
        reply = checker.say(sentence, is_command=is_command)
        if isinstance(reply, SentenceRefused):
            raise TheoremRefused(f"{reply.sentence:.200} -- {reply.message}")


def _is_library(command: str) -> bool:
    return command.startswith(("Require ", "From ", "Import ", "Open ", "Set ", "Unset ", "Local Open "))


@lru_cache(maxsize=32)
def _libraries(commands: tuple[str, ...]) -> tuple[ProofStep, ...]:
    """Load libraries; the checker that has them serves all theorems that need them. Raises: as `open_theorem`."""
    with shared_checkers().at(()) as checker:
        _state(checker, commands, is_command=True)
        return tuple(checker.steps)
