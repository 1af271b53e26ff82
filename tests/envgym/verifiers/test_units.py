"""Units after numbers, and whether those of an answer are those of its key."""

import time
from itertools import permutations

import pytest

from envgym.verifiers.units import units_differ, units_of, without_unit

SAME = [
    ("cent", "cents", "\\text{ cents}", "\\mathrm{~cents}"),
    ("cm^2", "square cm", "sq. cm", "\\text{ cm}^2", "\\text{cm}^{2}", "centimeters squared", "cm2", "cm\u00b2"),
    ("km/h", "km per hour", "\\text{ km/h}", "\\mathrm{~km} / \\mathrm{h}", "kilometers an hour"),
    ("in", "in.", "inches", "\\text{ inch}"),
    ("^\\circ", "^{\\circ}", "\u00b0", "degrees", "\\text{ degrees}"),
    ("^\\circ C", "\u00b0C", "^{\\circ} \\mathrm{C}", "degrees Celsius"),
    ("s", "sec", "seconds", "\\text{ s}"),
]


@pytest.mark.parametrize("names", SAME)
def test_the_notations_of_a_unit_are_one_unit(names: tuple[str, ...]) -> None:
    (unit,) = {units_of(f"3 {name}") for name in names}
    assert unit
    assert not any(units_differ(f"3 {one}", f"3 {other}") for one, other in permutations(names, 2))


def test_units_of_one_kind_differ_and_units_of_two_kinds_or_no_units_do_not() -> None:
    for kind in (
        "mm cm m km inches ft yd mi cm^2 cm^3",
        "s min h days weeks",
        "mg g kg lb oz",
        "ml l",
        "cents dollars",
    ):
        for one, other in permutations(kind.split(), 2):
            assert units_differ(f"3 {one}", f"3 {other}"), (one, other)
    assert not units_differ("3 cm", "3 kg")
    assert not units_differ("3 cm", "3")
    assert not units_differ("3", "3 cm")
    assert not units_differ("3 apples", "3 boxes")


def test_an_unknown_and_a_preposition_are_no_units() -> None:
    assert units_of("2 h s") == units_of("2 s h") == units_of("2 g + 3")
    assert not units_of("3 in all")
    assert not units_of("\\sin s")


def test_a_pair_of_dollar_signs_delimits_an_expression_and_one_sign_is_money() -> None:
    assert not units_of("$5$")
    assert units_of("$5") == units_of("\\$5") == units_of("$\\$5$") == units_of("5 dollars")


def test_only_a_unit_of_several_letters_after_a_number_is_dropped() -> None:
    assert [without_unit(text) for text in ("12 cm^2", "12\\text{ square feet}", "32348 dollars")] == [
        "12",
        "12",
        "32348",
    ]
    for text in ("12 m", "x cm", "12cm", "5 apples", "x^2", "12"):
        assert without_unit(text) == text


@pytest.mark.parametrize(
    "unit", ["9 ", "9 cm ", "9 cm / ", "\\text{", "square ", "^", "5 square ", "{ ~", "9 million "]
)
def test_hostile_texts_take_linear_time(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    start = time.thread_time()
    units_of(text)
    without_unit(text)
    assert time.thread_time() - start < 5.0
