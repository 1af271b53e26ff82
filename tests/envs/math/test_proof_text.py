"""What is sent to Coq is one tactic, whatever an agent writes; what Coq prints is read without its own numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.envs.math._coq_text import (
    MAX_CHARS,
    MAX_SENTENCES,
    MAX_SHOWN,
    TacticRefused,
    read_proof,
    read_reply,
    read_tactic,
    shown,
    split_sentences,
    without_comments,
)


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("intros x", ("1: ( intros x ).",)),
        ("  split;\n [ auto | ] .  ", ("1: ( split; [ auto | ] ).",)),
        ("- intros x.", ("-", "1: ( intros x ).")),
        ("} { split.", ("}", "{", "1: ( split ).")),
        ("all: assumption.", ("all: ( assumption ).",)),
        ("2: split.", ("2: ( split ).",)),
        ("rewrite Nat.add_comm in *.", ("1: ( rewrite Nat.add_comm in * ).",)),
        ("I think:\n```coq\nsplit.\n```", ("1: ( split ).",)),
        ("--", ("--",)),
    ],
)
def test_a_tactic_is_enclosed_and_bullets_are_not(text: str, sentences: tuple[str, ...]) -> None:
    assert read_tactic(text, automation=True) == sentences


@pytest.mark.parametrize(
    "text",
    [
        "auto. Admitted.",
        "x). Admitted. (y",
        "idtac) ; (",
        "auto...",
        "idtac ..",
        "idtac (* . *) ; admit",
        'idtac "a. Admitted. b".',
        "exact (x\u3002Admitted)",
        "intros \u2200",
        "intros\x00x",
        "admit.",
        "give_up.",
        "time auto.",
        "timeout 1 auto.",
        "native_compute.",
        "idtac </prompt>",
        "1: .",
        f"exact {'x' * MAX_CHARS}.",
    ],
)
def test_what_is_no_single_tactic_is_refused(text: str) -> None:
    with pytest.raises(TacticRefused):
        read_tactic(text, automation=True)


@given(st.text(alphabet=".()[]{}*-+:;\"' \n1aAx", max_size=40))
def test_whatever_is_written_is_refused_or_is_one_sentence_in_brackets(text: str) -> None:
    try:
        sentences = read_tactic(text, automation=True)
    except TacticRefused:
        return
    tactics = [sentence for sentence in sentences if len(sentence.strip("-+*{}")) > 0]
    assert len(tactics) <= 1
    for tactic in tactics:
        head, inner, tail = tactic[: tactic.index("(") + 2], tactic[tactic.index("(") + 2 : -3], tactic[-3:]
        assert (head[-4:], tail) == (": ( ", " ).")
        assert ". " not in inner
        assert not inner.endswith(".")
        assert "\n" not in inner
        assert "(*" not in inner
        assert '"' not in inner
        assert inner.count("(") == inner.count(")")


@pytest.mark.parametrize(
    "name", ["auto", "eauto", "tauto", "now", "congruence", "firstorder", "lia", "ring", "tauto_gen"]
)
def test_searches_are_refused_without_automation_only(name: str) -> None:
    assert read_tactic(f"intros; {name}.", automation=True) == (f"1: ( intros; {name} ).",)
    with pytest.raises(TacticRefused, match=f"{name} is not allowed here"):
        read_tactic(f"intros; {name}.", automation=False)


def test_names_that_hold_a_refused_word_are_not_refused() -> None:
    text = "apply admitted_lemma; exact (ring1 auto' timely)"
    assert read_tactic(f"{text}.", automation=False) == (f"1: ( {text} ).",)


def test_a_whole_proof_is_split_without_its_frame_and_comments() -> None:
    text = "Lemma x : True.\nProof.\n (* a. (* b *) c *) split.\n - { simpl. exact I. }\n + auto.\nQed."
    inner = ("1: ( split ).", "-", "{", "1: ( simpl ).", "1: ( exact I ).", "}", "+", "1: ( auto ).")
    assert read_proof(text, automation=True) == inner
    assert read_proof(f"Here it is:\n```coq\n{text}\n```\nDone.", automation=True) == inner


@pytest.mark.parametrize(
    "text, why",
    [
        ("Proof. Qed.", "Write the tactics"),
        ("(* never closed. auto.", "not closed"),
        ('idtac "x".', "no string"),
        ("auto. " * (MAX_SENTENCES + 1), "at most"),
    ],
)
def test_a_whole_proof_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(TacticRefused, match=why):
        read_proof(text, automation=True)


def test_comments_nest_and_leave_a_space() -> None:
    assert without_comments("a(* b (* c *) d *)e *) f") == "a e *) f"
    assert without_comments("((* a *)* b *) c") == "( * b *) c"


def test_trusted_commands_are_split_at_their_full_stops_only() -> None:
    text = 'Require A.B.\nNotation "x . y" := (x  +\n y). (* a. b *) Check c.'
    assert split_sentences(text) == ["Require A.B.", 'Notation "x . y" := (x + y).', "(* a. b *) Check c."]


def test_reply_is_read_without_places_asides_and_goal_numbers() -> None:
    goals = "1 goal (ID 12)\n  \n  a : nat\n  =====\n  a < 3\n\n"
    text = f"<infomsg>Fetching\nproofs</infomsg>\n{goals}<prompt>t < 40 |t| 0 < </prompt>"
    assert read_reply(text) == ("1 goal\n\n  a : nat\n  =====\n  a < 3", 40)
    error = (
        "Toplevel input, characters 5-8:\n> 1: ( foo ).\n>      ^^^\nError: No foo.\n\n<prompt>t < 5 |t| 0 < </prompt>"
    )
    assert read_reply(error) == ("Error: No foo.", 5)
    unknowns = "Error: Unable to unify ?M1072 <= ?M1071 with ?M1072 < x3.\n\n<prompt>t < 6 |t| 0 < </prompt>"
    assert read_reply(unknowns) == ("Error: Unable to unify ?M1 <= ?M2 with ?M1 < x3.", 6)
    assert read_reply("Fatal error: out of memory\nended with 2") is None


def test_long_goals_are_cut_and_say_so() -> None:
    assert shown("x" * MAX_SHOWN) == "x" * MAX_SHOWN
    assert shown("x" * (MAX_SHOWN + 7)).endswith("x\n... (7 characters left out)")
