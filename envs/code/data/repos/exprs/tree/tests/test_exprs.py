"""Expressions, end to end."""

import unittest

from exprs import EvaluationProblem, SyntaxProblem, evaluate, parse, show, simplify


class Evaluating(unittest.TestCase):
    """Values."""

    def test_sums_and_products(self):
        self.assertEqual(evaluate("1 + 2 * 3"), 7)
        self.assertEqual(evaluate("(1 + 2) * 3"), 9)
        self.assertEqual(evaluate("10 - 4 - 3"), 3)

    def test_variables(self):
        self.assertEqual(evaluate("x * y", {"x": 6, "y": 7}), 42)
        with self.assertRaises(EvaluationProblem):
            evaluate("x")

    def test_functions(self):
        self.assertEqual(evaluate("max(1, 2, 3) + abs(-4)"), 7)
        self.assertEqual(evaluate("sqrt(9)"), 3.0)

    def test_comparisons(self):
        self.assertEqual(evaluate("1 < 2"), 1)
        self.assertEqual(evaluate("1 + 1 == 3"), 0)

    def test_division_by_zero(self):
        with self.assertRaises(EvaluationProblem):
            evaluate("1 / 0")


class Reading(unittest.TestCase):
    """Texts."""

    def test_wrong_texts(self):
        for text in ("", "1 +", "(1", "1 2", "$"):
            with self.assertRaises(SyntaxProblem):
                parse(text)

    def test_printing(self):
        self.assertEqual(show(parse("2*(x+1)")), "2 * (x + 1)")
        self.assertEqual(show(parse("(a*b)+c")), "a * b + c")


class Simplifying(unittest.TestCase):
    """Shorter expressions."""

    def test_constants(self):
        self.assertEqual(show(simplify(parse("x + 2 * 3"))), "x + 6")

    def test_neutral_elements(self):
        self.assertEqual(show(simplify(parse("1 * x + 0"))), "x")


if __name__ == "__main__":
    unittest.main()
