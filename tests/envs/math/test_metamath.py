"""`math/metamath-v0`: drawn statements are true and proved, failing steps change nothing, and no trick pays."""

from itertools import product
from pathlib import Path

import pytest

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.env import NoOracle
from envgym.envs.families import LEVELS
from envgym.envs.math._metamath.statements import FAMILIES
from envgym.envs.math._metamath.terms import Term
from envgym.envs.math._metamath.theory import propositional
from envgym.envs.math.metamath import MAX_MESSAGE, RESTART, UNDO, Metamath
from envgym.errors import InvalidInput
from tests.envs.episodes import conformance
from tests.envs.math.test_metamath_verifier import DUMMY, QUANTIFIERS

TRICKS = (
    "the statement is proved",
    "?",
    "goal",
    "h1 with ph := ps",
    "h1 h1",
    "wph",
    "wi",
    "ax-mp",
    "ax-mp with",
    "ax-mp with ph",
    "ax-mp with ph :=",
    "ax-mp with ph := ( ph -> ph",
    "ax-mp with ph := ph ps := ps :=",
    "ax-mp with th := ph",
    "ax-1 with ph := ps , ph := ph",
    "ax-mp with ph := |- ph",
    "ax-mp with ph := \u2192",
    "ax-mp with ph := " + "-. " * 150 + "ph",
    "ax-mp with ph := " + "( " * 150,
    "ax-mp with ph := " + "( ph -> " * 150,
    "x" * 100_000,
    "undo undo",
    "( ax-mp ) AAA",
    "( ) A",
)


TestMetamath = conformance("math/metamath-v0", num_tasks=6)
TestWholeMetamathProofs = conformance("math/metamath-v0", num_tasks=3, mode="proof", attempts=3, held_out="inferences")


def started(goal: str, *hypotheses: str, uses: str = "all", **options: object) -> Metamath:
    """Begin an episode with a statement of one's own."""
    env = envgym.make("math/metamath-v0", **options).unwrapped
    assert isinstance(env, Metamath)
    payload: dict[str, JsonValue] = {"hypotheses": [*hypotheses], "goal": goal, "uses": uses}
    env.reset(options={"task": Task(id="own", prompt=goal, payload=payload, split=Split.TRAIN, metadata={})})
    return env


def texts(task: Task) -> tuple[str, ...]:
    """Return the hypotheses of a drawn statement and its goal."""
    hypotheses = task.payload["hypotheses"]
    assert isinstance(hypotheses, list)
    return (*map(str, hypotheses), str(task.payload["goal"]))


def said(env: Metamath, *steps: str) -> str:
    """Say steps; return the last observation."""
    return str([env.step(step).observation for step in steps][-1])


def holds(term: Term, values: dict[str, bool]) -> bool:
    """Evaluate a formula, independently of all proofs."""
    if isinstance(term, str):
        return values[term]
    assert isinstance(term, tuple)
    parts = [holds(part, values) for part in term[1:]]
    return not parts[0] if term[0] == "wn" else not parts[0] or parts[1]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_statements_are_true_and_proved_by_their_oracle(family: str, level: int) -> None:
    env = envgym.make("math/metamath-v0", families=family, levels=level)
    theory = propositional()
    for split, index in product(Split, range(12)):
        episode = play(env, oracle_of(env), seed=0, task=env.unwrapped.tasks.task(split, index))
        assert episode.reward == 1.0
        assert all("Failed" not in turn.observation for turn in episode.turns)
        statement = env.unwrapped.state.statement
        low, high = {"axioms": (2, 6), "theorems": (2, 6), "inferences": (2, 6)}[family]
        rules = [
            theory.rule(theory.database.assertions[turn.action.split()[0]])
            for turn in episode.turns
            if turn.action[0] != "h"
        ]
        assert low <= sum(bool(rule.premises) for rule in rules) <= high
        names = [name for name in theory.types if f" {name} " in f" {episode.observation} ".replace("\n", " ")]
        for row in product((False, True), repeat=len(names)):
            values = dict(zip(names, row, strict=True))
            if all(holds(term, values) for term in statement.hypotheses.values()):
                assert holds(statement.goal, values), episode.observation


def test_a_proof_grows_backward_from_the_goal() -> None:
    env = started("( ph -> ( ps -> ps ) )")
    assert said(env, "a1i") == "1 goal\n( ps -> ps )"
    assert said(env, "syl with ps := ( ph -> ps )").startswith(
        "2 goals\n( ps -> ( ph -> ps ) )\n( ( ph -> ps ) -> ps )"
    )
    assert said(env, "ax-1") == "1 goal\n( ( ph -> ps ) -> ps )"
    assert said(env, UNDO, UNDO) == "1 goal\n( ps -> ps )"
    assert said(env, RESTART) == "1 goal\n( ph -> ( ps -> ps ) )"
    assert said(env, UNDO) == "1 goal\n( ph -> ( ps -> ps ) )"
    said(env, "a1i")
    result = env.step("id.".removesuffix("."))
    assert (result.observation, result.reward, result.terminated) == ("The statement is proved.", 1.0, True)
    assert result.info["envgym"].reward.components == {"proved": 1.0, "steps": 1.0, "failed_steps": 0.0}


@pytest.mark.parametrize(
    "step, message",
    [
        ("ax-mp", "the goal does not determine ph: write ax-mp with ph := FORMULA"),
        ("syl with ph := ph", "the goal does not determine ps: write syl with ps := FORMULA"),
        ("id", "id proves ( ph -> ph ), which does not fit the goal"),
        ("a1i with ph := ph", "a1i proves ( ps -> ph ), which does not fit the goal with ph := ph"),
        ("a1i with ch := ph", "a1i has no variable ch; it has ph ps"),
        ("h1", "h1 is ph, and the goal is ( ph -> ( ps -> ph ) )"),
        ("h2", "h2 is no hypothesis, axiom or theorem that may be used here"),
        ("h1 with ph := ps", "h1 is a hypothesis, so nothing follows it"),
        ("ax-mp with ph := (ps", "(ps is no symbol; symbols are separated by spaces"),
        ("ax-mp with ph := ( ps -> )", "( ps -> ) is no wff: only ( ps -> can be read"),
        ("ax-mp ph := ps", "a step is a label, or LABEL with VARIABLE := FORMULA, VARIABLE := FORMULA"),
        ("ax-mp with ( ph := ps )", "after `with`, write VARIABLE := FORMULA"),
    ],
)
def test_a_failing_step_tells_why_and_changes_nothing(step: str, message: str) -> None:
    env = started("( ph -> ( ps -> ph ) )", "ph")
    before = env.state
    result = env.step(step)
    assert result.observation == f"Failed: {message}."
    assert result.info["envgym"].reward.components == {"proved": 0.0, "steps": 0.0, "failed_steps": 1.0}
    assert env.state is before


@pytest.mark.parametrize("mode", ["steps", "proof"])
def test_no_trick_proves_what_is_false(mode: str) -> None:
    for trick in TRICKS:
        env = started("( ps -> ph )", "( ph -> ps )", mode=mode, attempts=10)
        for _ in range(2):
            result = env.step(trick)
            assert result.reward == 0.0, trick
            assert result.info["envgym"].ending is None, trick
            assert len(result.observation) < MAX_MESSAGE + 100


def test_goals_do_not_grow_without_end() -> None:
    env = started("( ph -> ps )", max_turns=None)
    shown = [said(env, "pm2.43i") for _ in range(200)]  # ( ph -> ps ) from ( ph -> ( ph -> ps ) )
    assert shown[0] == "1 goal\n( ph -> ( ph -> ps ) )"
    assert shown[-1] == "Failed: a goal may have 1000 variables and operators, nested 120 deep."


def test_axioms_alone_where_only_they_may_be_used() -> None:
    env = started("( ph -> ph )", uses="axioms")
    assert said(env, "id") == "Failed: id is no hypothesis, axiom or theorem that may be used here."
    assert said(env, "?") == "ax-mp: ph, ( ph -> ps ) => ps"
    whole = started("( ph -> ph )", uses="axioms", mode="proof", attempts=2)
    assert said(whole, "wph id").startswith("Failed: id may not be used here.\nAttempts left: 1.")
    assert whole.step("ax-1 ax-1 ax-2 ax-mp ax-mp").reward == 1.0


@pytest.mark.parametrize(
    "proof",
    [
        "h1 a1i",
        "wph wps h1 a1i",
        "$= wph wps h1 a1i $.",
        "h1 ax-1 ax-mp",
        "( a1i ) ABCD",
        "wph wps wph wi h1 wph wps ax-1 ax-mp",
    ],
)
def test_whole_proofs_are_read_in_all_forms(proof: str) -> None:
    env = started("( ps -> ph )", "ph", mode="proof")
    result = env.step(proof)
    assert (result.observation, result.reward) == ("The statement is proved.", 1.0), proof


def test_a_whole_proof_that_fails_ends_the_episode_after_the_last_attempt() -> None:
    env = started("( ps -> ph )", "ph", mode="proof", attempts=2)
    assert said(env, "h1") == "Failed: the proof does not prove ( ps -> ph ).\nAttempts left: 1."
    result = env.step("wph wps ax-1")
    assert result.observation == "Failed: the proof proves |- ( ph -> ( ps -> ph ) ), not |- ( ps -> ph )."
    assert (result.reward, result.info["envgym"].ending) == (0.0, Ending.TERMINATED)


def test_a_fork_shares_the_state_and_goes_its_own_way() -> None:
    env = started("( ph -> ( ps -> ps ) )")
    said(env, "a1i")
    fork = env.fork()
    assert fork.state is env.state
    assert fork.step("id").reward == 1.0
    assert said(env, UNDO) == "1 goal\n( ph -> ( ps -> ps ) )"


def test_no_statement_is_in_both_splits_whatever_families_are_held_out() -> None:
    sides: dict[Split, set[tuple[str, ...]]] = {split: set() for split in Split}
    for held_out in ("", "axioms", "theorems"):
        env = envgym.make("math/metamath-v0", held_out=held_out or ()).unwrapped
        for split, index in product(Split, range(60)):
            task = env.tasks.task(split, index)
            sides[split].add(texts(task))
            if held_out:
                assert (task.metadata["family"] == held_out) is (split is Split.TEST)
    assert not sides[Split.TRAIN] & sides[Split.TEST]
    assert len(sides[Split.TRAIN]) > 100


def test_the_order_of_hypotheses_and_the_names_of_variables_make_no_other_statement() -> None:
    for index in range(40):
        task = envgym.make("math/metamath-v0", families="inferences").unwrapped.tasks.task(Split.TRAIN, index)
        symbols = " ".join(texts(task)).split()
        names = [*dict.fromkeys(symbol for symbol in symbols if symbol.isalpha())]
        assert names == [*propositional().types][: len(names)]


def file_env(folder: Path, text: str, **options: object) -> Metamath:
    path = folder / "own.mm"
    path.write_text(text, encoding="ascii")
    env = envgym.make("math/metamath-v0", data=str(path), **options).unwrapped
    assert isinstance(env, Metamath)
    return env


def labels(env: Metamath) -> dict[str, Task]:
    tasks = [env.tasks.task(split, index) for split in Split for index in range(env.tasks.size(split) or 0)]
    return {task.id: task for task in tasks}


@pytest.mark.parametrize("mode", ["steps", "proof"])
def test_theorems_of_a_file_are_proved_from_what_is_before_them(tmp_path: Path, mode: str) -> None:
    env = file_env(tmp_path, f"{QUANTIFIERS} ${{ $d y ph $. {DUMMY} $}}", mode=mode)
    task = labels(env)["dum"]
    result = env.reset(options={"task": task})
    lines = [
        "Prove ph",
        "from",
        "dum.1: ph",
        "",
        "mp: ph, ( ph -> ps ) => ps",
        "sp: ( all x ph -> ph )",
        "vac: ( ph -> all x ph ) (ph and x without common variable)",
    ]
    assert result.observation == "\n".join(lines)
    assert play(env, oracle_of(env), seed=0, task=task).reward == 1.0
    assert env.chance_score == 1.0


def test_disjoint_variables_are_checked_at_each_step(tmp_path: Path) -> None:
    env = file_env(
        tmp_path,
        f"{QUANTIFIERS} ${{ $d x ps $. ok $p |- ( ps -> all x ps ) $= wps vx vac $. $}}"
        " not $p |- ( all x ph -> all x all x ph ) $= ? $.",
        verify_file=False,
    )
    env.reset(options={"task": labels(env)["not"]})
    assert said(env, "vac") == "Failed: vac needs ph and x disjoint, which x breaks."
    with pytest.raises(NoOracle, match="incomplete"):
        env.oracle()
    env.reset(options={"task": labels(env)["ok"]})
    assert env.step("vac").reward == 1.0


def test_a_file_with_a_wrong_proof_is_refused(tmp_path: Path) -> None:
    env = file_env(tmp_path, f"{QUANTIFIERS} bad $p |- ( ps -> ps ) $= wps wps wi $.")
    with pytest.raises(InvalidInput, match=r"theorem bad must be proved by the file, got the proof proves wff"):
        env.reset(seed=0)
    with pytest.raises(InvalidInput, match="must hold theorems"):
        file_env(tmp_path, QUANTIFIERS).reset(seed=0)
    with pytest.raises(InvalidInput, match="must be a file in ASCII that can be read"):
        envgym.make("math/metamath-v0", data=str(tmp_path / "no.mm")).reset(seed=0)
