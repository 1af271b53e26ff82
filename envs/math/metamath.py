"""Statements proved in Metamath, step by step or at once, with a verifier in plain Python: `math/metamath-v0`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envgym.authoring.sources import check_range
from envgym.core.messages import Action
from envgym.core.tasks import Task, TaskSource
from envgym.core.turns import Scored
from envgym.env import Env, NoOracle, share_state
from envgym.envs.families import LEVELS
from envgym.envs.math._metamath.database import Assertion, Hypothesis
from envgym.envs.math._metamath.statements import FAMILIES
from envgym.envs.math._metamath.steps import (
    Position,
    RuleStep,
    apply,
    complete_proof,
    rule_named,
    shown_step,
    steps_of,
)
from envgym.envs.math._metamath.tasks import FileTheorems, statement_tasks
from envgym.envs.math._metamath.terms import Term, TermRefused, match
from envgym.envs.math._metamath.theory import ALL, Rule, Statement, Theory, propositional
from envgym.envs.math._metamath.unify import complete_steps
from envgym.envs.math._metamath.verifier import ProofRefused, read_proof, verify
from envgym.errors import check_known, sentence
from envgym.records import Reply

MODES = ("steps", "proof")
MAX_ATTEMPTS = 10
MAX_LABELS, MAX_SYMBOLS = 2000, 200_000
"""Of a whole proof: its labels, and the symbols of all statements that its steps take and give."""
MAX_FORMULA = 200
"""Symbols of a formula that an agent writes."""
UNDO, RESTART = "undo", "restart"
MAX_LISTED = 100
"""Axioms and theorems that are shown before the first turn; of more, an agent asks for those that it needs."""
MAX_GOALS, MAX_MESSAGE = 10, 2000
"""Goals that an observation shows, and characters of a message about a failed step."""
_NUM_FOUND = 20
_WHERE = "math/metamath-v0"
_NOTATION = "A rule is written as LABEL: PREMISES => CONCLUSION, and any formula may be put in place of its variables."
_PROMPTS = {
    "steps": (
        "Prove the statement in Metamath, backward from the goal. Each of your messages is one step: the label of a "
        "hypothesis that is the first goal, or of a rule whose conclusion becomes the first goal; its premises are the "
        "new goals. Variables that the conclusion does not determine must be given, as in "
        "`ax-mp with ph := ( ps -> ps )`; symbols are separated by spaces. A step that fails changes nothing. "
        f"`{UNDO}` takes back the last step, `{RESTART}` all of them; `? LABEL` shows a rule, and `?` those whose "
        "conclusion fits the first goal. "
    ),
    "proof": (
        "Prove the statement in Metamath. Your message is the whole proof, normal or compressed. In a normal proof, "
        "the labels of syntax may be left out: what the variables stand for is then found by unification. "
    ),
}


@dataclass(frozen=True, slots=True)
class MetamathState:
    """A proof so far."""

    statement: Statement
    positions: tuple[Position, ...]
    """The start, and what each step made of the goals."""
    num_attempts: int = 0
    """Whole proofs that were handed in."""


class Metamath(Env[MetamathState]):
    """A message is a step or a whole proof; the episode ends when the verifier accepts the proof."""

    def __init__(
        self,
        *,
        mode: str = "steps",
        families: str | Sequence[str] = tuple(FAMILIES),
        levels: int | Sequence[int] = LEVELS,
        held_out: str | Sequence[str] = (),
        data: str | None = None,
        verify_file: bool = True,
        attempts: int = 1,
        max_turns: int | None = 40,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose statements and the form of proofs.

        Args:
            mode: `steps`: a message is one step backward; `proof`: it is a whole proof.
            families: Of the drawn statements: axioms, theorems, inferences, or several.
            levels: Of the drawn statements: 1, 2, 3 or several.
            held_out: Families that make up the test split, and are not in the train split.
            data: Instead of drawn statements: a `.mm` file, whose theorems are to be proved.
            verify_file: Verify all proofs of the file before the first task.
            attempts: 1 to 10: how many whole proofs may be handed in.
            max_turns: Turns until the episode is cut, which pays nothing.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        super().__init__(max_turns=max_turns, **options)
        check_known("mode", mode, MODES, where=_WHERE)
        check_range("attempts", attempts, 1, MAX_ATTEMPTS, where=_WHERE)
        self.is_whole, self.attempts = mode == "proof", attempts
        self.tasks: TaskSource
        if data is None:
            statements = statement_tasks(families, levels, held_out)
            self.tasks, self.chance_score = statements, statements.chance("math/data/metamath_chance.toml")
        else:
            self.tasks, self.chance_score = FileTheorems(data, verify_file=verify_file), 1.0
        self.system_prompt = f"{_PROMPTS[mode]}{_NOTATION}"
        if data is None:
            theory = propositional()
            self.system_prompt += "\n\n" + "\n".join(_shown_rule(theory, theory.rule(item)) for item in theory.provable)

    @property
    def theory(self) -> Theory:
        """What the statements are proved from. Raises: InvalidInput: the file cannot be read."""
        return self.tasks.theory() if isinstance(self.tasks, FileTheorems) else propositional()

    def begin(self, task: Task) -> str:
        payload, theory = task.payload, self.theory
        if "label" in payload:
            statement = theory.theorem(str(payload["label"]))
            rules = list(theory.rules(statement)) if statement.source.number <= MAX_LISTED else []
            listed = [_shown_rule(theory, rule) for rule in rules]
        else:
            texts = payload["hypotheses"]
            assert isinstance(texts, Sequence), "made by statement_tasks"
            hypotheses = {f"h{number}": str(text) for number, text in enumerate(texts, start=1)}
            statement, listed = theory.statement(hypotheses, str(payload["goal"]), str(payload.get("uses", ALL))), []
        self.state = MetamathState(statement, (Position(None, (statement.goal,)),))
        return "\n".join([task.prompt, *([""] if listed else []), *listed])

    def respond(self, action: Action) -> Reply:
        text = action.content.strip()
        if self.is_whole:
            return self._judge(text)
        word = text.rstrip(".").lower()
        if word in (UNDO, RESTART):
            positions = self.state.positions
            self.state = replace(
                self.state, positions=positions[:1] if word == RESTART else positions[:-1] or positions
            )
            return Reply(observation=self._shown_goals())
        try:
            if text.startswith("?"):
                return Reply(observation=self._help(text[1:].strip()))
            return self._step(text)
        except (ProofRefused, TermRefused) as refusal:
            return Reply(observation=_failure(refusal), reward=_paid(0.0, failed=1.0))

    def _step(self, text: str) -> Reply:
        state, theory = self.state, self.theory
        label, formulas = _read_step(text)
        goals, types = state.positions[-1].goals, state.statement.types
        terms: dict[str, Term] = {}
        if formulas and label in state.statement.hypotheses:
            raise ProofRefused(f"{label} is a hypothesis, so nothing follows it")
        if formulas:
            rule = rule_named(theory, state.statement, label)
            floating = rule.source.scope.floating
            for name, formula in formulas.items():
                if name not in rule.variables:
                    raise ProofRefused(f"{label} has no variable {name}; it has {' '.join(rule.variables) or 'none'}")
                terms[name] = theory.formula(formula, floating[name].statement[0], types)
        position = apply(theory, state.statement, goals, label, terms)
        positions = (*state.positions, position)
        if not position.goals:
            steps = [one.step for one in positions if one.step is not None]
            verify(state.statement.source, complete_proof(theory, state.statement, steps), free_dummies=True)
        self.state = MetamathState(state.statement, positions)
        if position.goals:
            return Reply(observation=self._shown_goals(), reward=_ACCEPTED)
        return Reply(observation="The statement is proved.", reward=_paid(1.0, steps=1.0), terminated=True)

    def _judge(self, text: str) -> Reply:
        state = self.state
        labels = text.removeprefix("$=").removesuffix("$.").split()
        count = state.num_attempts + 1
        self.state = replace(state, num_attempts=count)
        try:
            if len(labels) > MAX_LABELS:
                raise ProofRefused(f"a proof has at most {MAX_LABELS} labels")
            proof = self._read_proof(labels)
            verify(state.statement.source, proof, free_dummies=True, max_symbols=MAX_SYMBOLS)
        except ProofRefused as refusal:
            left = self.attempts - count
            more = f"\nAttempts left: {left}." if left else ""
            return Reply(observation=f"{_failure(refusal)}{more}", reward=_paid(0.0, failed=1.0), terminated=not left)
        return Reply(observation="The statement is proved.", reward=_paid(1.0), terminated=True)

    def _read_proof(self, labels: Sequence[str]) -> Iterable[Assertion | Hypothesis | int]:
        theory, statement = self.theory, self.state.statement
        if not _has_syntax(theory, labels):
            return complete_proof(theory, statement, complete_steps(theory, statement, labels))
        for label in labels:
            assertion = theory.database.assertions.get(label)
            if assertion is not None and not statement.allows(assertion):
                raise ProofRefused(f"{label} may not be used here")
        return read_proof(theory.database, statement.source, labels)

    def _help(self, label: str) -> str:
        """Show a rule, or the last ones whose conclusion fits the first goal. Raises: ProofRefused: there is none."""
        state, theory = self.state, self.theory
        if label:
            return _shown_rule(theory, rule_named(theory, state.statement, label))
        goal = state.positions[-1].goals[0]
        rules = [rule for rule in theory.rules(state.statement) if match(rule.conclusion, goal, {})]
        return "\n".join(_shown_rule(theory, rule) for rule in rules[-_NUM_FOUND:]) or "No rule fits the first goal."

    def _shown_goals(self) -> str:
        goals = self.state.positions[-1].goals
        show = self.theory.grammar.show
        if len(goals) == 1:
            return f"1 goal\n{show(goals[0])}"
        more = [f"and {len(goals) - MAX_GOALS} more"] if len(goals) > MAX_GOALS else []
        return "\n".join([f"{len(goals)} goals", *map(show, goals[:MAX_GOALS]), *more])

    def oracle(self) -> str:
        """Say the next step of the proof that is known, from the start where others were said; or all of that proof.

        Raises: NoOracle: the file's proof is incomplete.
        """
        theory, state = self.theory, self.state
        steps = self._known_steps()
        if self.is_whole:
            return " ".join(_postorder(theory, state.statement, steps))
        done_steps = [_shown(theory, state.statement, one.step) for one in state.positions if one.step is not None]
        return steps[len(done_steps)] if steps[: len(done_steps)] == done_steps else RESTART

    def _known_steps(self) -> list[str]:
        proof = self.task.metadata.get("proof")
        if isinstance(proof, list):
            return [str(step) for step in proof]
        theory, label = self.theory, self.task.payload.get("label")
        try:
            return [_shown(theory, self.state.statement, step) for step in steps_of(theory, str(label))]
        except (ProofRefused, KeyError) as refusal:
            do = "give the task a proof"
            raise NoOracle(sentence("oracle", "know a proof", str(refusal), where=self.task.id, do=do)) from None

    fork_state = share_state


def _paid(value: float, *, steps: float = 0.0, failed: float = 0.0) -> Scored:
    return Scored(value=value, components={"proved": value, "steps": steps, "failed_steps": failed})


def _failure(refusal: Exception) -> str:
    text = f"Failed: {refusal}"
    return f"{text[:MAX_MESSAGE]} ..." if len(text) > MAX_MESSAGE else f"{text}."


_ACCEPTED = _paid(0.0, steps=1.0)


def _read_step(text: str) -> tuple[str, dict[str, str]]:
    """Read `LABEL`, or `LABEL with VARIABLE := FORMULA, ...`. Raises: ProofRefused: it has another form."""
    words = text.replace("`", " ").replace(":=", " := ").split(maxsplit=2)
    if len(words) == 1:
        return words[0], {}
    if len(words) < 3 or words[1] != "with":
        raise ProofRefused("a step is a label, or LABEL with VARIABLE := FORMULA, VARIABLE := FORMULA")
    symbols = words[2].split()
    places = [at for at, symbol in enumerate(symbols) if symbol == ":="]
    if places[:1] != [1]:
        raise ProofRefused("after `with`, write VARIABLE := FORMULA")
    formulas: dict[str, str] = {}
    for at, following in zip(places, [*places[1:], len(symbols) + 1], strict=True):
        if following - at > MAX_FORMULA + 2:
            raise ProofRefused(f"a formula has at most {MAX_FORMULA} symbols")
        formulas[symbols[at - 1]] = " ".join(symbols[at + 1 : following - 1]).removesuffix(",")
    return words[0], formulas


def _shown_rule(theory: Theory, rule: Rule) -> str:
    show = theory.grammar.show
    premises = ", ".join(map(show, rule.premises))
    apart = [f"{one} and {two} without common variable" for one, two in rule.source.disjoint]
    ending = f" ({'; '.join(apart)})" if apart else ""
    return f"{rule.label}: {premises and premises + ' => '}{show(rule.conclusion)}{ending}"


def _shown(theory: Theory, statement: Statement, step: RuleStep) -> str:
    return step.label if step.label in statement.hypotheses else shown_step(theory, step.label, step.values)


def _has_syntax(theory: Theory, labels: Sequence[str]) -> bool:
    """Tell whether a proof is compressed, or builds the formulas that its variables stand for."""
    assertions, hypotheses = theory.database.assertions, theory.database.hypotheses
    provable = {item.label for item in theory.provable}
    return labels[:1] == ["("] or any(
        (label in assertions and label not in provable) or (label in hypotheses and hypotheses[label].is_floating)
        for label in labels
    )


def _postorder(theory: Theory, statement: Statement, steps: Sequence[str]) -> list[str]:
    """Return the labels of steps from the goal on as Metamath orders them: premises first."""
    proofs: list[list[str]] = []
    for step in reversed(steps):
        label = step.split()[0]
        is_hypothesis = label in statement.hypotheses
        count = 0 if is_hypothesis else len(theory.database.assertions[label].essential)
        premises = [proofs.pop() for _ in range(count)]
        proofs.append([*(one for part in premises for one in part), label])
    return proofs[0]
