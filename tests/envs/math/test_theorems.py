"""Drawn theorems: the same index draws the same one, and no shape is on both sides of the split."""

from pathlib import Path

import numpy as np
import pytest

from envgym.authoring.sampler import Sampler
from envgym.core.tasks import Split
from envgym.envs.math._coq_proofs import theorem_command
from envgym.envs.math._theorem import Theorem, renamed
from envgym.envs.math._theorem_tasks import FAMILIES, TheoremFiles, theorem_tasks
from envgym.errors import InvalidInput

ALL = tuple(FAMILIES)


def shape_of(task: object) -> str:
    payload = getattr(task, "payload")  # noqa: B009
    return Theorem(statement=payload["statement"], definitions=tuple(payload["definitions"]), proof=()).shape


def test_a_shape_forgets_names_and_numbers_and_nothing_else() -> None:
    first = Theorem(statement="forall a b : nat, a + 12 = b * a", proof=())
    other = Theorem(statement="forall p q : nat, p + 3 = q * p", proof=())
    third = Theorem(statement="forall p q : nat, p + 3 = p * q", proof=())
    assert first.shape == other.shape == "forall x0 x1 : nat, x0 + # = x1 * x0"
    assert third.shape != first.shape


def test_renaming_reaches_statement_proof_and_definitions() -> None:
    theorem = Theorem(statement="F N = FN", proof=("induction N.",), definitions=("Fixpoint F (n : nat) := n.",))
    new = renamed(theorem, {"F": "walk", "N": "k"})
    assert (new.statement, new.proof, new.definitions) == (
        "walk k = FN",
        ("induction k.",),
        ("Fixpoint walk (n : nat) := n.",),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_no_shape_is_on_both_sides(family: str) -> None:
    tasks = theorem_tasks((family,), (1, 2, 3), ())
    train, test = ({shape_of(tasks.task(split, index)) for index in range(120)} for split in (Split.TRAIN, Split.TEST))
    assert not train & test
    assert min(len(train), len(test)) >= 10


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_repeats_by_its_generator_and_differs_by_level(family: str) -> None:
    draws = [
        [FAMILIES[family](Sampler(np.random.default_rng(seed)), level) for seed in range(40)] for level in (1, 3, 3)
    ]
    assert draws[1] == draws[2]
    lengths = [sum(len(theorem.statement) + len(theorem.proof) for theorem in some) for some in draws[:2]]
    assert lengths[0] < lengths[1]


def test_families_take_turns_and_held_out_ones_are_all_of_the_test_split() -> None:
    tasks = theorem_tasks(ALL, (1, 2), ("lists", "order"))
    families = {split: [tasks.task(split, index).metadata["family"] for index in range(6)] for split in Split}
    assert families[Split.TRAIN] == ["propositional", "arithmetic", "induction"] * 2
    assert families[Split.TEST] == ["lists", "order"] * 3
    assert [tasks.task(Split.TEST, index).metadata["level"] for index in range(4)] == [1, 1, 2, 2]


def test_same_index_is_the_same_task() -> None:
    one, two = theorem_tasks(ALL, (1, 2, 3), ()), theorem_tasks(ALL, (1, 2, 3), ())
    assert [one.task(Split.TEST, index) for index in range(20)] == [two.task(Split.TEST, index) for index in range(20)]


def test_a_statement_is_a_proposition_or_a_whole_command() -> None:
    assert theorem_command("forall x : nat,\n x = x") == "Theorem goal : forall x : nat, x = x."
    assert theorem_command("Lemma same (x : nat) : x = x.") == "Lemma same (x : nat) : x = x."


def test_rows_of_a_file_keep_their_split_and_name_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "theorems.jsonl"
    path.write_text(
        '{"name": "one", "statement": "1 = 1", "split": "valid", "proof": "intros. reflexivity."}\n'
        '{"name": "two", "statement": "2 = 2", "split": "test", "header": "Require Import ZArith.", "proof": null}\n'
    )
    tasks = TheoremFiles(str(path))
    one, two = tasks.task(Split.TRAIN, 0), tasks.task(Split.TEST, 0)
    proof = ["intros.", "reflexivity."]
    steps = {"hint": "intros.", "hints": {"steps": proof}, "sub_goals": proof}
    assert one.metadata == {"name": "one", "proof": proof, **steps}
    assert (two.payload["head"], two.metadata) == ("Require Import ZArith.", {"name": "two"})
    assert two.prompt == "Prove this theorem.\n\nRequire Import ZArith.\nTheorem goal : 2 = 2."


@pytest.mark.parametrize(
    "row, told",
    [
        ('{"name": "two"}', "field statement must be a text that is not empty, got no such field (row 1 of"),
        ('{"statement": "1 = 1"}', "field name must be a text that is not empty, got no such field (row 1 of"),
        ('{"name": "two", "statement": 3}', "field statement must be a text that is not empty, got 3 (row 1 of"),
        ('{"name": "two", "statement": "1 = 1", "header": 3}', "field header must be a text, got 3 (row 1 of"),
        ('{"name": "t", "statement": "1 = 1", "split": "x"}', "field split must be known, got x (row 1 of"),
    ],
)
def test_a_faulty_row_is_named_with_its_field(row: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "theorems.jsonl"
    path.write_text(f'{{"name": "one", "statement": "1 = 1"}}\n{row}\n')
    with pytest.raises(InvalidInput) as error:
        TheoremFiles(str(path)).size(Split.TRAIN)
    assert told in str(error.value)
