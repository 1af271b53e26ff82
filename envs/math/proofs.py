"""Theorems proved in Coq, tactic by tactic or at once, and checked by Coq itself: `math/proofs-v0`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from envgym.authoring.sources import check_range
from envgym.core.messages import Action
from envgym.core.tasks import Task, TaskSource
from envgym.core.turns import Scored
from envgym.env import Env, NoOracle, share_state
from envgym.envs.families import LEVELS
from envgym.envs.math._coq_checker import ProofStep, check_installed
from envgym.envs.math._coq_proofs import ProofAttempt, ProofLimits, TheoremRefused, continue_proof, open_theorem
from envgym.envs.math._coq_text import TacticRefused, check_braces, read_proof, read_tactic, shown
from envgym.envs.math._theorem_tasks import AUTOMATION, FAMILIES, LIBRARIES, TheoremFiles, theorem_tasks
from envgym.errors import InvalidInput, check_known, sentence
from envgym.records import Reply

MODES = ("tactics", "proof")
MAX_ATTEMPTS = 10
UNDO, RESTART = "Undo.", "Restart."
_WHERE = "math/proofs-v0"
_RULES = (
    "Write plain ASCII, and no commands such as Require, Lemma or Admitted. A tactic acts on the first goal; `all:` or "
    "a number before it chooses others. Bullets and braces may be used."
)
_NO_AUTOMATION = " Tactics that search for proofs (auto, tauto, firstorder, congruence, lia ...) are not allowed."
_PROMPTS = {
    "tactics": (
        "Prove the theorem in Coq. Each of your messages is one tactic, and the goals that are left come back. A "
        f"tactic that fails changes nothing. {UNDO} takes back the last tactic, {RESTART} all of them. "
    ),
    "proof": "Prove the theorem in Coq. Your message is the whole proof: tactics, each with a full stop. ",
}


@dataclass(frozen=True, slots=True)
class ProofState:
    """A proof so far; Coq is brought to it when it is needed."""

    steps: tuple[ProofStep, ...]
    """All that was said, from the first library on."""
    ends: tuple[int, ...]
    """How many steps there were at the start, and after each tactic."""
    num_attempts: int = 0
    """Whole proofs that were handed in."""


class Proofs(Env[ProofState]):
    """A message is a tactic or a whole proof; the episode ends when Coq accepts the proof."""

    blocking = True

    def __init__(
        self,
        *,
        mode: str = "tactics",
        families: str | Sequence[str] = tuple(FAMILIES),
        levels: int | Sequence[int] = LEVELS,
        held_out: str | Sequence[str] = (),
        automation: bool = False,
        data: str | Mapping[str, str] | None = None,
        axioms: Sequence[str] = (),
        tactic_s: float = 10.0,
        proof_s: float = 30.0,
        attempts: int = 1,
        max_turns: int | None = 60,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose theorems and rules.

        Args:
            mode: `tactics`: a message is one tactic; `proof`: it is a whole proof.
            families: Of the drawn theorems: propositional, order, arithmetic, lists, induction, or several.
            levels: Of the drawn theorems: 1, 2, 3 or several.
            held_out: Families that make up the test split, and are not in the train split.
            automation: Allow tactics that search for proofs, and load `lia` and `ring`.
            data: Instead of drawn theorems: a `.jsonl` file with the fields name and statement, and optionally header,
                split and proof; or a mapping from split to file.
            axioms: Names of axioms that a proof may rest on, as `Print Assumptions` writes them.
            tactic_s: Seconds of processor time after which a tactic, with the bullets before it, is stopped, and has
                failed.
            proof_s: The same for all tactics of a whole proof together.
            attempts: 1 to 10: how many whole proofs may be handed in.
            max_turns: Turns until the episode is cut, which pays nothing.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range, or Coq is not installed.
        """
        check_installed(_WHERE)
        super().__init__(max_turns=max_turns, **options)
        check_known("mode", mode, MODES, where=_WHERE)
        check_range("attempts", attempts, 1, MAX_ATTEMPTS, where=_WHERE)
        for name, seconds in (("tactic_s", tactic_s), ("proof_s", proof_s)):
            is_time = 0 < seconds < math.inf
            InvalidInput.unless(is_time, name, "be seconds above 0", seconds, where=_WHERE, do="pass e.g. 10")
        self.is_whole, self.automation, self.attempts = mode == "proof", automation, attempts
        self.limits = ProofLimits(tactic_s, proof_s if self.is_whole else tactic_s)
        self.axioms = frozenset([axioms] if isinstance(axioms, str) else axioms)
        self.system_prompt = f"{_PROMPTS[mode]}{_RULES}{'' if automation else _NO_AUTOMATION}"
        self.tasks, self.chance_score = _theorems(families, levels, held_out, automation, data)

    def begin(self, task: Task) -> str:
        """State the theorem. Raises: InvalidInput: Coq refuses the statement, or a command before it."""
        head = str(task.payload.get("head", ""))
        libraries = f"{LIBRARIES} {AUTOMATION}" if self.automation else LIBRARIES
        definitions = task.payload.get("definitions")
        if isinstance(definitions, list):
            head = " ".join([libraries, *map(str, definitions)])
        try:
            steps = open_theorem(head, str(task.payload["statement"]))
        except TheoremRefused as refusal:
            must, do = "be accepted by Coq", "correct the statement or its header"
            raise InvalidInput.of(f"theorem {task.id}", must, str(refusal), where=_WHERE, do=do) from None
        self.state = ProofState(steps, (len(steps),))
        return task.prompt if self.is_whole else f"{task.prompt}\n\n{shown(steps[-1].printed)}"

    def respond(self, action: Action) -> Reply:
        text = action.content.strip()
        if not self.is_whole and f"{text.rstrip('.')}." in (UNDO, RESTART):
            return self._take_back(all_of_it=text.startswith(RESTART.rstrip(".")))
        try:
            read = read_proof if self.is_whole else read_tactic
            sentences = read(text, automation=self.automation)
            start = self.state.steps[: self.state.ends[0]] if self.is_whole else self.state.steps
            check_braces([*(step.sentence for step in start), *sentences])
        except TacticRefused as refusal:
            return self._failed(str(refusal))
        done = continue_proof(start, sentences, self.limits, self.axioms)
        if done.is_proved:
            return Reply(observation="The theorem is proved.", reward=_reward(done, 1.0), terminated=True)
        if self.is_whole:
            return self._failed(_why(done, sentences), done)
        if done.failure:
            return self._failed(done.failure, done)
        self.state = replace(self.state, steps=done.steps, ends=(*self.state.ends, len(done.steps)))
        return Reply(observation=shown(done.steps[-1].printed), reward=_reward(done, 0.0))

    def _failed(self, message: str, done: ProofAttempt | None = None) -> Reply:
        self.state = replace(self.state, num_attempts=self.state.num_attempts + 1)
        left = self.attempts - self.state.num_attempts
        text, reward = f"Failed: {shown(message)}", _reward(done, 0.0, failed=1.0)
        if not self.is_whole:
            return Reply(observation=text, reward=reward)
        more = f"\nAttempts left: {left}." if left else ""
        return Reply(observation=f"{text}{more}", reward=reward, terminated=not left)

    def _take_back(self, *, all_of_it: bool) -> Reply:
        ends = self.state.ends[:1] if all_of_it else self.state.ends[:-1] or self.state.ends
        self.state = replace(self.state, steps=self.state.steps[: ends[-1]], ends=ends)
        return Reply(observation=shown(self.state.steps[-1].printed))

    def oracle(self) -> str:
        """Say the next tactic of the proof that was drawn with the theorem, from the start where others were said.

        Raises: NoOracle: the theorem came without a proof.
        """
        proof = self.task.metadata.get("proof")
        if not isinstance(proof, list):
            raise NoOracle(sentence("oracle", "know a proof", "none", where=self.task.id, do="add the field proof"))
        tactics = [str(tactic) for tactic in proof]
        if self.is_whole:
            return "\n".join(tactics)
        state = self.state
        sentences = [step.sentence for step in state.steps[state.ends[0] :]]
        for number in range(len(tactics) + 1):
            prefix = [part for tactic in tactics[:number] for part in read_tactic(tactic, automation=True)]
            if prefix == sentences and number < len(tactics):
                return tactics[number]
        return RESTART

    fork_state = share_state


def _reward(done: ProofAttempt | None, value: float, failed: float = 0.0) -> Scored:
    accepted = float(done.num_accepted) if done else 0.0
    return Scored(value=value, components={"proved": value, "tactics": accepted, "failed_tactics": failed})


def _why(done: ProofAttempt, sentences: Sequence[str]) -> str:
    if not done.failure:
        return f"the proof ends before its goals.\n{done.steps[-1].printed}"
    at = min(done.num_accepted, len(sentences) - 1)
    return f"sentence {at + 1}, {sentences[at].removeprefix('1: ( ').removesuffix(' ).')}\n{done.failure}"


def _theorems(
    families: str | Sequence[str],
    levels: int | Sequence[int],
    held_out: str | Sequence[str],
    automation: bool,
    data: str | Mapping[str, str] | None,
) -> tuple[TaskSource, float]:
    if data is not None:
        return _files(data if isinstance(data, str) else tuple(data.items())), 1.0
    theorems = theorem_tasks(families, levels, held_out)
    # With automation one search proves most of them.
    return theorems, 1.0 if automation else theorems.chance("math/data/proofs_chance.toml")


@lru_cache(maxsize=8)
def _files(data: str | tuple[tuple[str, str], ...]) -> TheoremFiles:
    """Return the theorems of files; nobody changes them, so envs share them."""
    return TheoremFiles(data if isinstance(data, str) else dict(data))
