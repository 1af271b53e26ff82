"""Arithmetic expressions: read, evaluate, simplify, print."""

from exprs.evaluator import EvaluationProblem, evaluate
from exprs.parser import parse
from exprs.printer import show
from exprs.simplifier import names, simplify
from exprs.tokens import SyntaxProblem

__all__ = ["EvaluationProblem", "SyntaxProblem", "evaluate", "names", "parse", "show", "simplify"]
