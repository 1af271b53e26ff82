"""Databases, proofs and terms of Metamath: what the specification allows is accepted, everything else is not."""

from pathlib import Path

import pytest

from envgym.envs.math._metamath.database import Database, read_database
from envgym.envs.math._metamath.steps import complete_proof, steps_of
from envgym.envs.math._metamath.terms import Term, TermRefused, match
from envgym.envs.math._metamath.theory import Theory, propositional
from envgym.envs.math._metamath.unify import Unifier, Unsolvable, apply_rule, complete_steps
from envgym.envs.math._metamath.verifier import ProofRefused, read_proof, verify
from envgym.errors import InvalidInput

LEMMAS = [item.label for item in propositional().database.assertions.values() if item.proof is not None]
QUANTIFIERS = """
$c ( ) -> |- wff var all $.  $v ph ps x y $.
wph $f wff ph $.  wps $f wff ps $.  vx $f var x $.  vy $f var y $.
wi $a wff ( ph -> ps ) $.
wal $a wff all x ph $.
${ min $e |- ph $. maj $e |- ( ph -> ps ) $. mp $a |- ps $. $}
sp $a |- ( all x ph -> ph ) $.
${ $d x ph $. vac $a |- ( ph -> all x ph ) $. $}
"""
DUMMY = "dum.1 $e |- ph $. dum $p |- ph $= wph vy wal wph wph wph vy wal dum.1 wph vy vac mp wph vy sp mp $."


def database(folder: Path, text: str) -> Database:
    path = folder / "test.mm"
    path.write_text(text, encoding="ascii")
    return read_database(path)


def refusal(found: Database, label: str, *, free_dummies: bool = False, max_symbols: float = 1e6) -> str:
    """Return why a proof of the file is refused, or nothing."""
    theorem = found.assertions[label]
    try:
        proof = read_proof(found, theorem, theorem.proof or ())
        verify(theorem, proof, free_dummies=free_dummies, max_symbols=max_symbols)
    except ProofRefused as error:
        return str(error)
    return ""


@pytest.mark.parametrize("label", LEMMAS)
def test_every_lemma_is_proved_from_what_is_before_it(label: str) -> None:
    assert refusal(propositional().database, label) == ""


@pytest.mark.parametrize("label", LEMMAS)
def test_no_proof_with_a_step_left_out_or_exchanged_proves_the_lemma(label: str) -> None:
    found = propositional().database
    theorem = found.assertions[label]
    proof = list(theorem.proof or ())
    others = ["wph", "wn", "wi", "ax-1", "ax-mp", label]
    wrong = [[*proof[:at], *proof[at + 1 :]] for at in range(len(proof))]
    wrong += [[*proof[:at], other, *proof[at + 1 :]] for at in range(len(proof)) for other in others]
    for labels in wrong:
        if labels != proof:
            with pytest.raises(ProofRefused):
                verify(theorem, read_proof(found, theorem, labels))


@pytest.mark.parametrize("label", LEMMAS)
def test_a_proof_is_rebuilt_from_its_steps(label: str) -> None:
    theory = propositional()
    theorem = theory.theorem(label)
    verify(theorem.source, complete_proof(theory, theorem, steps_of(theory, label)), free_dummies=False)


def test_a_compressed_proof_is_read(tmp_path: Path) -> None:
    # b: A = wph, B = wi, C = id, so AAB is wff ( ph -> ph ) and AABC is id of it. c: D = mp, and what Z keeps is E:
    # E E AC EC D is wff ( ph -> ph ) twice, |- ( ph -> ph ), id of that, and the detachment. d: the second Z is F.
    text = "$c ( ) -> |- wff $. $v ph ps $. wph $f wff ph $. wps $f wff ps $. wi $a wff ( ph -> ps ) $."
    text += " id $a |- ( ph -> ph ) $. ${ min $e |- ph $. maj $e |- ( ph -> ps ) $. mp $a |- ps $. $}"
    text += " b $p |- ( ( ph -> ph ) -> ( ph -> ph ) ) $= ( wi id ) AABC $."
    text += " c $p |- ( ph -> ph ) $= ( wi id mp ) AABZEACECD $."
    text += " d $p |- ( ph -> ph ) $= ( wi id mp ) AABZEZACFCD $."
    text += " e $p |- ( ph -> ph ) $= ( wi id ) AABG $. f $p |- ( ph -> ph ) $= ( id ) ABZZ $."
    text += " g $p |- ( ph -> ph ) $= ( wph id ) AC $."
    text += " h $p |- ( ph -> ph ) $= ( id AB $. i $p |- ( ph -> ph ) $= ( id ) ABU $."
    found = database(tmp_path, text)
    assert [refusal(found, label) for label in "bcd"] == ["", "", ""]
    assert refusal(found, "e") == "step 7 of the compressed proof is not defined"
    assert refusal(found, "f") == "Z is out of place in the compressed proof"
    assert refusal(found, "g") == "a compressed proof lists no mandatory hypothesis"
    assert refusal(found, "h") == "the labels of a compressed proof must end with )"
    assert refusal(found, "i") == "the compressed proof ends within a step"


def test_disjoint_variables_must_not_meet(tmp_path: Path) -> None:
    text = QUANTIFIERS + "${ $d x ps $. ok $p |- ( ps -> all x ps ) $= wps vx vac $. $} "
    text += "shared $p |- ( all x ph -> all x all x ph ) $= wph vx wal vx vac $. "
    text += "missing $p |- ( ps -> all x ps ) $= wps vx vac $."
    found = database(tmp_path, text)
    assert refusal(found, "ok") == ""
    assert refusal(found, "shared") == "vac needs ph and x disjoint, which x breaks"
    assert refusal(found, "missing") == "vac needs ph and x disjoint, which ps and x breaks"
    assert refusal(found, "missing", free_dummies=True) != "", "both are in the statement"


def test_variables_of_the_proof_alone_may_be_taken_as_disjoint(tmp_path: Path) -> None:
    without = database(tmp_path, f"{QUANTIFIERS} ${{ {DUMMY} $}}")
    assert refusal(without, "dum") == "vac needs ph and x disjoint, which ph and y breaks"
    assert refusal(without, "dum", free_dummies=True) == ""
    assert refusal(database(tmp_path, f"{QUANTIFIERS} ${{ $d y ph $. {DUMMY} $}}"), "dum") == ""


def test_a_proof_uses_what_is_before_it_and_active(tmp_path: Path) -> None:
    text = QUANTIFIERS + "a $p |- ( ph -> ph ) $= wph b $. b $p |- ( ph -> ph ) $= wph b $. c $p |- ph $= wph min $. "
    text += "d $p |- ph $= ? $. e $p |- ph $= $. f $p |- ph $= wph wph $. g $p |- ph $= wph $. h $p |- ph $= mp $. "
    text += "i $p |- ( all x ph -> ph ) $= vx wph sp $."
    found = database(tmp_path, text)
    never = "is no hypothesis of the theorem, and no assertion before it"
    assert [refusal(found, label) for label in "abc"] == [f"b {never}", f"b {never}", f"min {never}"]
    assert refusal(found, "d") == "the proof has a step ?, and is incomplete"
    assert refusal(found, "e") == "the proof leaves 0 statements, not one"
    assert refusal(found, "f") == "the proof leaves 2 statements, not one"
    assert refusal(found, "g") == "the proof proves wff ph, not |- ph"
    assert refusal(found, "h") == "mp needs 4 statements, and the stack has 0"
    assert refusal(found, "i") == "sp needs wph: wff x, and gets var x"


def test_a_proof_that_grows_is_stopped() -> None:
    found = propositional().database
    assert refusal(found, "jc", max_symbols=10) == "the statements of the proof are too many or too long"


@pytest.mark.parametrize(
    "text, message",
    [
        ("$c a $. $c a $.", "constant must be a new symbol, got a (test.mm, line 1)"),
        ("$v x $. $v x $.", "variable must be no constant, label or active variable, got x"),
        ("$c a $. ${ $c b $. $}", "$c must stand outside all blocks"),
        ("$c a $. $v x $. l $f a x $. l $f a x $.", "label must be new, and no symbol, got l"),
        ("$c a $. $v x $. l $f a x $. m $f a x $.", "$f must be a constant and an active variable without typecode"),
        ("$c a $. l $a a x $.", "symbol must be a constant, or an active variable with a $f, got x"),
        ("$c a $. $v x $. l $a a x $.", "symbol must be a constant, or an active variable with a $f, got x"),
        ("$c a $. l $a $.", "statement must begin with a constant, its typecode, got nothing"),
        ("$c a $. $a a $.", "label must stand before $f, $e, $a and $p alone, got none before $a"),
        ("$c a $. l $c b $.", "label must stand before $f, $e, $a and $p alone, got l before $c"),
        (
            "$c a $.\n$v x $. $d x x $.",
            "$d must name two or more active variables, each once, got x x (test.mm, line 2)",
        ),
        ("${ $c a", "statement must end with $., got the end of the file"),
        ("${", "file must end after a statement, outside all blocks, got an open ${"),
        ("$}", "keyword must belong to a statement, got $}"),
        ("$( a $( b $)", "comment must hold no other one, got $("),
        ("$( a", "comment must end with $), got the end of the file"),
        ("$c a $. l $p a $.", "statement must end with $=, got $."),
        ("l/1 $a a $.", "statement must begin with a keyword, or a label and a keyword, got l/1"),
        ("$[ no.mm $]", "Metamath file must be a file in ASCII that can be read"),
    ],
)
def test_what_breaks_a_rule_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        database(tmp_path, text)
    assert message in str(error.value)


def test_files_are_included_once_and_blocks_end(tmp_path: Path) -> None:
    (tmp_path / "head.mm").write_text("$c a $. $[ test.mm $]", encoding="ascii")
    found = database(
        tmp_path, "$[ head.mm $] $[ head.mm $] ${ $v x $. f $f a x $. e $e a x $. l $a a x $. $} $v x $. m $a a $."
    )
    assert [item.label for item in found.assertions["l"].hypotheses] == ["f", "e"]
    assert found.assertions["m"].hypotheses == ()
    assert found.scope.variables == {"x"}


def test_a_formula_is_read_with_rules_that_begin_with_a_part(tmp_path: Path) -> None:
    text = "$c |- wff set class = e. + $. $v x y A B $. vx $f set x $. vy $f set y $. cA $f class A $. cB $f class B $."
    text += " cv $a class x $. weq $a wff A = B $. wel $a wff A e. B $. cadd $a class A + B $."
    grammar = Theory(database(tmp_path, text)).grammar
    types = {"x": "set", "y": "set", "A": "class", "B": "class"}
    term = grammar.parse(["x", "=", "A"], "wff", types)
    assert term == ("weq", ("cv", "x"), "A")
    longer = "x + A e. B + y"
    assert grammar.show(grammar.parse(longer.split(), "wff", types)) == longer
    for wrong in ("x = ", "= A", "x", "A = B = x", "( A = B )"):
        with pytest.raises(TermRefused):
            grammar.parse(wrong.split(), "wff", types)
    with pytest.raises(TermRefused, match="nested more than 100 deep"):
        propositional().formula("-. " * 101 + "ph", "wff", propositional().types)


def test_condensed_detachment_by_hand() -> None:
    # D1.1: ax-1 as ( X -> ( ps -> X ) ) from ax-1 as X = ( ph -> ( ch -> ph ) ): ( ps -> ( ph -> ( ch -> ph ) ) ).
    theory = propositional()
    rules = {name: theory.rule(theory.database.assertions[name]) for name in ("ax-1", "ax-mp")}
    unifier = Unifier()
    one, two = (apply_rule(unifier, rules["ax-1"], ())[0] for _ in range(2))
    proved = unifier.written(apply_rule(unifier, rules["ax-mp"], (one, two))[0])
    values: dict[str, Term] = {}
    assert match(theory.formula("( ps -> ( ph -> ( ch -> ph ) ) )", "wff", theory.types), proved, values)
    assert len({*values.values()}) == 3
    assert all(isinstance(value, int) for value in values.values())


def test_a_metavariable_is_never_part_of_what_it_stands_for() -> None:
    unifier = Unifier()
    one = unifier.new("wff")
    with pytest.raises(Unsolvable):
        unifier.unify(one, ("wn", one))


def test_terms_that_grow_without_end_cost_no_more_than_the_limit() -> None:
    unifier = Unifier()
    term = unifier.new("wff")
    for _ in range(100):  # each has the last one twice, so this one has 2^100 parts
        last, term = term, unifier.new("wff")
        unifier.unify(last, ("wi", term, term))
    with pytest.raises(Unsolvable):
        unifier.written(0)
    assert unifier.is_spent


@pytest.mark.parametrize(
    "labels, message",
    [
        ("ax-mp", "label 1, ax-mp, needs 2 proofs before it, and there are 0"),
        ("ax-1 ax-1", "the proof leaves 2 statements, not one"),
        ("ax-1", "the proof does not prove ( ph -> ph )"),
        ("ax-1 notnot mto", "label 3, mto, does not fit what was proved before it"),
        ("wph", "wph is no hypothesis, axiom or theorem that may be used here"),
        ("", "the proof leaves 0 statements, not one"),
    ],
)
def test_a_proof_without_syntax_says_where_it_fails(labels: str, message: str) -> None:
    theory = propositional()
    with pytest.raises(ProofRefused) as error:
        complete_steps(theory, theory.statement({}, "( ph -> ph )"), labels.split())
    assert str(error.value) == message
