"""Outputs are compared as contest graders do: numbers by value, all else as text."""

import time

import pytest

from envgym.envs.code._stdio_outputs import same_output


@pytest.mark.parametrize(
    "output, expected",
    [
        ("3.0", "3"),
        ("3.", "3"),
        ("3e0", "3"),
        ("-0.0", "0"),
        ("-0", "0"),
        ("0.3333333333333333", "0.333333"),
        ("0.333333", "0.3333333333333333"),
        ("2.5", "2.50"),
        ("2", "2.0"),
        ("1e-9", "0.0"),
        ("1000000.5", "1000001.0"),  # 0.5 of a million is below a millionth
        ("1e3", "1000.0"),
        ("Case #1: 0.5", "Case #1: 0.500000"),
        ("1 2.0 x\n0.1\n\n", "1 2 x\n0.10"),
        ("-1.50", "-1.5"),
        ("1 2 \n3\n\n", "1 2\n3"),
        ("9007199254740993.0", "9007199254740993"),
    ],
)
def test_the_same_numbers_are_the_same_output(output: str, expected: str) -> None:
    assert same_output(output, expected)


@pytest.mark.parametrize(
    "output, expected",
    [
        ("2.9999999", "3"),  # an integer is met by the same value only
        ("3.0000001", "3"),
        ("9007199254740992", "9007199254740993"),  # the same as floats
        ("9007199254740992.0", "9007199254740993"),
        ("1" * 5000, "1" * 4999 + "2"),
        ("0.33", "0.333333"),
        ("0.333335", "0.333333"),  # 2e-6 apart
        ("1000003", "1000001.0"),
        ("007", "7"),
        ("101", "0101"),
        ("5:3", "05:03"),
        ("+3", "3"),
        ("1_000", "1000"),
        ("٣", "3"),
        ("nan", "nan "[:-1] + "x"),
        ("inf", "1e999999"),
        ("0x10", "16"),
        ("True", "1"),
        ("3 3", "3"),
        ("1  2", "1 2"),
        (" 1", "1"),
        ("1\n2", "1 2"),
        ("1 2 3", "1 2\n3"),
        ("1  2\n3", "1 2\n3"),
        ("a 1.0", "b 1"),
        ("1e999999999", "1"),
        ("", "0"),
    ],
)
def test_other_outputs_are_not(output: str, expected: str) -> None:
    assert not same_output(output, expected)


@pytest.mark.parametrize(
    "text", ["1e999999", "-1e-999999", "9" * 65_000, "0." + "3" * 65_000, "1 " * 30_000, "1e" + "9" * 60_000]
)
def test_long_numbers_are_compared_at_once(text: str) -> None:
    start = time.process_time()
    for expected in ("1", "1.5", "1 " * 29_999 + "2", "8" * 65_000, "0." + "3" * 64_999):
        assert not same_output(text, expected)
    assert time.process_time() - start < 1.0
