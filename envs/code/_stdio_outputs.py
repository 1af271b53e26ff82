"""When the output of a program is the expected one: the same lines, with numbers compared by value."""

import re
from decimal import Context, Decimal

TOLERANCE = Decimal("1e-6")
"""Absolute where the expected number is below 1, relative above it."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,6})?)")
_EXACT = Context(prec=40, Emax=10**9, Emin=-(10**9), traps=[])
_MAX_CHARS = 400
"""Of a number with a fraction; a longer one is compared as text."""


def same_output(output: str, expected: str) -> bool:
    """Compare outputs line by line, without spaces at the ends of lines and empty lines at the end.

    Words between spaces are the same if they are the same text or the same number, as `same_number` says.
    """
    bare, bare_expected = bare_output(output), bare_output(expected)
    if bare == bare_expected:
        return True
    lines, expected_lines = bare.split("\n"), bare_expected.split("\n")
    return len(lines) == len(expected_lines) and all(map(_same_line, lines, expected_lines))


def bare_output(output: str) -> str:
    """Return an output without spaces at the ends of lines and empty lines at the end."""
    return "\n".join(line.rstrip() for line in output.rstrip().split("\n"))


def _same_line(line: str, expected: str) -> bool:
    if line == expected:
        return True
    words, expected_words = line.split(" "), expected.split(" ")
    return len(words) == len(expected_words) and all(map(_same_word, words, expected_words))


def _same_word(word: str, expected: str) -> bool:
    return word == expected or same_number(word, expected)


def same_number(text: str, expected: str) -> bool:
    """Tell whether two texts are the same number.

    An expected integer is met by the same value only (`3.0` for 3), of any size. An expected number with a fraction or
    an exponent is met within 1e-6, absolute below 1 and relative above. Digits after a leading zero are text (`007`).
    """
    actual_match, expected_match = _NUMBER.fullmatch(text), _NUMBER.fullmatch(expected)
    if actual_match is None or expected_match is None:
        return False
    if not (actual_match["fraction"] or expected_match["fraction"]):
        return {text, expected} == {"0", "-0"}
    if max(len(text), len(expected)) > _MAX_CHARS:
        return False
    number, expected_number = Decimal(text), Decimal(expected)
    if not expected_match["fraction"]:
        return number == expected_number
    difference = _EXACT.abs(_EXACT.subtract(number, expected_number))
    return bool(difference <= _EXACT.multiply(TOLERANCE, max(Decimal(1), _EXACT.abs(expected_number))))
