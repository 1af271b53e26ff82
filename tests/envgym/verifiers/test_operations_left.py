"""What is a value: the operations that an answer leaves to be done, counted on what math-verify reads."""

import pytest

from envgym.core.tasks import Split, Task
from envgym.verifiers.math import Math

VALUES = {
    "2\\sqrt{3}": ("2\\sqrt3", "\\sqrt{12}", "2 \\cdot \\sqrt{3}", "12^{1/2}", "\\frac{6}{\\sqrt{3}}"),
    "\\frac{3\\pi}{4}": ("3\\pi/4", "\\frac{3}{4}\\pi", "0.75\\pi", "\\pi \\cdot \\frac{3}{4}", "\\frac{6\\pi}{8}"),
    "(\\frac{1}{2}, -3)": ("(0.5, -3)", "(\\frac{2}{4}, -3)", "(1/2, -3.0)", "\\left(\\frac12,-3\\right)"),
    "\\{-3, 3\\}": ("\\pm 3", "3, -3", "\\{3, -3\\}", "x = \\pm 3"),
    "\\{-9, 2\\}": ("x = 2 \\text{ or } x = -9", "2, -9"),
    "[2, 10]": ("[2.0, 10]",),
    "(-\\infty, -2] \\cup [\\frac{7}{2}, \\infty)": ("(-\\infty, -2] \\cup [3.5, \\infty)",),
    "3 \\ln(\\frac{13}{6})": (
        "3\\ln 13 - 3\\ln 6",
        "3(\\ln 13 - \\ln 6)",
        "3\\ln\\left|\\frac{13}{6}\\right|",
        "\\ln\\frac{2197}{216}",
    ),
    "1 + \\sqrt{2}": ("\\sqrt{2} + 1",),
    "\\frac{1 + \\sqrt{5}}{2}": ("\\frac{1}{2} + \\frac{\\sqrt{5}}{2}",),
    "3 - 2i": ("-2i + 3",),
    "(300000, 1)": ("(3 \\times 10^5, 1)",),
    "\\begin{pmatrix}7&0\\\\0&7\\end{pmatrix}": ("\\begin{bmatrix}7&0\\\\0&7\\end{bmatrix}",),
    "2^{98}": ("4^{49}",),  # the key is not worked out itself
    "3x^2 + 2x": ("x(3x + 2)", "2x + 3x^2", "x^2 + 2x(x + 1)", "x \\cdot 3x + 2x"),  # a formula
}
FORMULAS = {
    "3x^2 + 2x": ("(1 + 2)x^2 + 2x", "3x^2 + 2x + 1 - 1", "3x^2 + 1 \\cdot 2x", "3^1 x^2 + 2x"),
    "\\sqrt{7}": ("\\sqrt{7} \\cdot 1", "1 \\sqrt{7}", "\\sqrt{7 \\cdot 1}", "\\sqrt{7} + 0"),
    "2\\sqrt{3}": (
        "\\sqrt{4 + 8}",
        "\\sqrt{2^2 + 8}",
        "(1 + 1)\\sqrt{3}",
        "\\sqrt{3} + \\sqrt{3}",
        "2\\sqrt{3} + 0",
        "2\\sqrt{3} + 1 - 1",
        "2\\sqrt{3} + x - x",
        "2\\sqrt{3} \\cdot 1",
        "\\sqrt{4}\\sqrt{3}",
        "\\sqrt{2}\\sqrt{6}",
    ),
    "\\frac{3\\pi}{4}": (
        "\\frac{(1 + 2)\\pi}{4}",
        "\\pi - \\frac{\\pi}{4}",
        "\\frac{1}{2} \\cdot \\frac{3}{2} \\pi",
        "3 \\cdot 2^{-2} \\pi",
        "\\frac{\\frac{3}{2}\\pi}{2}",
        "\\frac{3\\pi}{2 \\cdot 2}",
    ),
    "(\\frac{1}{2}, -3)": (
        "(\\frac{3 - 2}{2}, -3)",
        "(\\frac{1}{2}, 2 - 5)",
        "(\\sin(\\frac{\\pi}{6}), -3)",
        "(\\frac{1}{2}, -\\sqrt{9})",
        "(\\frac{1}{2}, -|3|)",
        "(\\frac{1}{2}, -\\log_2 8)",
    ),
    "\\{-3, 3\\}": ("\\{-3\\} \\cup \\{3\\}", "\\pm \\sqrt{9}", "\\{1 - 4, 3\\}"),
    "[2, 10]": ("[1 + 1, 10]", "[2, 2 \\cdot 5]", "[2, 3! + 4]"),
    "3 \\ln(\\frac{13}{6})": ("(1 + 2)\\ln(\\frac{13}{6})", "3\\ln(\\frac{7 + 6}{6})", "3\\ln(7 + 6) - 3\\ln 6"),
    "3 - 2i": ("(1 + 2) - 2i", "5 - 2 - 2i"),
    "\\begin{pmatrix}7&0\\\\0&7\\end{pmatrix}": (
        "\\begin{pmatrix}3+4&0\\\\0&7\\end{pmatrix}",
        "7\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}",
    ),
    "2^{98}": ("2^{90} \\cdot 2^8",),
}


def score(answer: str, key: str, *, worked_out: bool = True) -> float:
    task = Task(id="t", prompt="", payload={"answer": key}, split=Split.TEST)
    return Math(worked_out=worked_out)(f"\\boxed{{{answer}}}", task).score


@pytest.mark.parametrize("key", VALUES)
def test_a_value_in_any_form_is_worked_out(key: str) -> None:
    assert {answer: score(answer, key) for answer in (key, *VALUES[key])} == dict.fromkeys((key, *VALUES[key]), 1.0)


@pytest.mark.parametrize("key", FORMULAS)
def test_a_formula_for_a_value_is_right_and_not_worked_out(key: str) -> None:
    assert {answer: score(answer, key) for answer in FORMULAS[key]} == dict.fromkeys(FORMULAS[key], 0.0)
    assert {score(answer, key, worked_out=False) for answer in FORMULAS[key]} == {1.0}


def test_the_reason_says_how_many_operations_are_left() -> None:
    task = Task(id="t", prompt="", payload={"answer": "(3, 10)"}, split=Split.TEST)
    verdict = Math(worked_out=True)("\\boxed{(1 + 2, 2 \\cdot 5)}", task)
    assert verdict.reason == "operations that are still to be done: 2"
