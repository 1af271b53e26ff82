"""Statements that a solver proves only from intermediate facts, which the agent must find: `math/z3-v0`."""

import importlib.util
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from envgym.authoring import TaskDraft
from envgym.authoring.sampler import Sampler
from envgym.authoring.sources import check_range, step_metadata
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env, NoOracle, share_state
from envgym.envs.families import LEVELS, DrawnTask, choose_families
from envgym.envs.math._solver_formulas import Formula, FormulaRefused, read_formula, write_smt
from envgym.envs.math._solver_statements import FAMILIES, draw_bounded
from envgym.errors import EnvFailure, InvalidInput, sentence
from envgym.records import Reply
from envgym.verifiers.processes import Worker, WorkerDied, WorkerHung, WorkerPool

LIMIT = 20_000
"""Resource units of Z3 for one fact: two layers take at most 11,000, a whole statement above 75,000."""
CPU_S, WAIT_S = 10, 300.0
"""Seconds of processor time, and of waiting, for one fact."""
_WHERE = "math/z3-v0"
_POOL = WorkerPool("envgym.envs.math._solver_worker", min(4, os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class FactState:
    """A statement, and the facts that were accepted."""

    variables: tuple[str, ...]
    premises: tuple[Formula, ...]
    goal: Formula
    facts: tuple[Formula, ...] = ()


class SolverFacts(Env[FactState]):
    """A message is a fact; it is accepted if Z3 proves it from premises and accepted facts within its limit."""

    blocking = True
    chance_score = 0.01
    system_prompt = (
        "Prove the goal from the premises, about whole numbers. Each of your messages is one fact, as a formula with "
        "`+ - * = != < <= > >= and or not ->` and parentheses; products have a number as a factor. A solver with a "
        "small limit checks whether it follows from the premises and the facts accepted before. The goal itself is too "
        "hard for it at first: state facts that lead there, and the goal as the last one."
    )

    def __init__(
        self,
        *,
        families: str | Sequence[str] = FAMILIES,
        levels: int | Sequence[int] = LEVELS,
        held_out: str | Sequence[str] = (),
        limit: int = LIMIT,
        max_turns: int | None = 30,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose statements and the solver's limit.

        Args:
            families: sums, bounds, or both.
            levels: 1, 2, 3 or several.
            held_out: Families that make up the test split, and are not in the train split.
            limit: Resource units of Z3 for one fact, 15,000 to 40,000.
            max_turns: Turns until the episode is cut, which pays nothing.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range, or Z3 is not installed.
        """
        if importlib.util.find_spec("z3") is None:
            must, do = "be installed", "run `pip install 'envgym[proofs]'`"
            raise InvalidInput.of("package z3-solver", must, "no such package", where=_WHERE, do=do)
        super().__init__(max_turns=max_turns, **options)
        check_range("limit", limit, 15_000, 40_000, where=_WHERE)
        self.limit = limit
        self.tasks = choose_families(families, levels, held_out, all_families=FAMILIES, draw=_draw, where=_WHERE)

    def begin(self, task: Task) -> str:
        premises, names = task.payload["premises"], task.metadata["variables"]
        assert isinstance(premises, Sequence), "made by _draw"
        assert isinstance(names, Sequence), "made by _draw"
        variables = tuple(map(str, names))
        read = tuple(read_formula(str(text), variables) for text in premises)
        self.state = FactState(variables, read, read_formula(str(task.payload["goal"]), variables))
        return task.prompt

    def respond(self, action: Action) -> Reply:
        state = self.state
        try:
            fact = read_formula(action.content.replace("`", " "), state.variables)
        except FormulaRefused as refusal:
            return Reply(observation=f"Not accepted: {refusal}.", reward=_paid(0.0, failed=1.0))
        problem = _check(state, fact, self.limit)
        if problem:
            return Reply(observation=f"Not accepted: {problem}.", reward=_paid(0.0, failed=1.0))
        self.state = FactState(state.variables, state.premises, state.goal, (*state.facts, fact))
        if fact == state.goal:
            return Reply(observation="The goal is proved.", reward=_paid(1.0, facts=1.0), terminated=True)
        return Reply(observation="Accepted.", reward=_paid(0.0, facts=1.0))

    def oracle(self) -> str:
        """Say the next fact of the proof that was drawn with the statement."""
        facts = self.task.metadata.get("facts")
        if not isinstance(facts, list):
            raise NoOracle(sentence("oracle", "know a proof", "none", where=self.task.id, do="add the field facts"))
        return next(
            str(fact) for fact in facts if read_formula(str(fact), self.state.variables) not in self.state.facts
        )

    fork_state = share_state


def _paid(value: float, *, facts: float = 0.0, failed: float = 0.0) -> Scored:
    return Scored(value=value, components={"proved": value, "facts": facts, "failed_facts": failed})


@lru_cache(maxsize=4096)
def _check(state: FactState, fact: Formula, limit: int) -> str:  # the same for equal arguments, so it is kept
    """Return why a fact is not accepted, or nothing. Raises: EnvFailure: Z3 died, and by no limit."""
    lines = [f"(declare-const {name} Int)" for name in state.variables]
    lines += [f"(assert {write_smt(formula)})" for formula in (*state.premises, *state.facts)]
    names: list[JsonValue] = [name for name in state.variables if name in _variables(fact)]
    request: dict[str, JsonValue] = {
        "smt": "\n".join([*lines, f"(assert (not {write_smt(fact)}))"]),
        "shown": names,
        "limit": limit,
        "cpu_s": CPU_S,
    }

    def ask(worker: Worker) -> tuple[str, dict[str, str]]:
        worker.send(request)
        answer = worker.receive(WAIT_S)
        return answer["result"], answer["values"]

    try:
        result, values = _POOL.use(ask)
    except WorkerDied as death:
        if death.returncode == -signal.SIGXCPU:
            return "the solver took too long"
        raise _failure(str(death)) from None
    except WorkerHung as hang:
        raise _failure(str(hang)) from None
    if result == "unsat":
        return ""
    if result == "sat":
        example = ", ".join(f"{name} = {value}" for name, value in values.items())
        return f"it does not follow, as with {example}" if example else "it does not follow"
    return "the solver cannot decide it within its limit; state a fact that is nearer to what is known"


def _failure(why: str) -> EnvFailure:
    return EnvFailure.of("Z3", "answer", why, where=_WHERE, do="run `envgym check math/z3-v0` to see whether it works")


def _variables(formula: Formula) -> set[str]:
    if formula[0] == "variable":
        return {str(formula[1])}
    return set().union(*(_variables(part) for part in formula[1:] if isinstance(part, tuple)))


def _draw(sampler: Sampler, family: str, level: int) -> DrawnTask:
    statement = draw_bounded(sampler, family, level)
    premises: list[JsonValue] = [*statement.premises]
    variables: list[JsonValue] = [*statement.variables]
    facts: list[JsonValue] = [*statement.facts]
    draft = TaskDraft(
        prompt="\n".join(["Premises:", *statement.premises, f"Goal: {statement.goal}"]),
        payload={"premises": premises, "goal": statement.goal},
        metadata={
            "family": family,
            "level": level,
            "variables": variables,
            "facts": facts,
            **step_metadata(statement.facts),
        },
    )
    return DrawnTask(draft, draft.payload)
