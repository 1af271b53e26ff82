"""Builds an expression out of tokens, by precedence climbing."""

from exprs.tokens import SyntaxProblem, tokenize
from exprs.tree import Binary, Call, Choice, Name, Number, Unary

PRECEDENCE = {"<": 1, "<=": 1, ">": 1, ">=": 1, "==": 1, "!=": 1, "+": 2, "-": 2, "*": 3, "/": 3, "//": 3, "%": 3, "^": 5}
UNARY = 4
FROM_THE_RIGHT = {"^"}


def parse(text):
    """Return the expression that a text says. Raises SyntaxProblem."""
    reader = _Reader(tokenize(text))
    found = reader.choice()
    reader.expect("end", "")
    return found


class _Reader:
    def __init__(self, tokens):
        self.tokens = tokens
        self.index = 0

    @property
    def token(self):
        return self.tokens[self.index]

    def take(self):
        token = self.token
        self.index += 1
        return token

    def is_next(self, text):
        return self.token.kind == "operator" and self.token.text == text

    def expect(self, kind, text):
        if self.token.kind != kind or self.token.text != text:
            wanted = text or "the end"
            raise SyntaxProblem(f"expected {wanted}", self.token.position)
        return self.take()

    def choice(self):
        condition = self.operation(1)
        if not self.is_next("?"):
            return condition
        self.take()
        then = self.choice()
        self.expect("operator", ":")
        return Choice(condition, then, self.choice())

    def operation(self, lowest):
        left = self.operand()
        while self.token.kind == "operator" and PRECEDENCE.get(self.token.text, 0) >= lowest:
            operator = self.take().text
            strength = PRECEDENCE[operator]
            right = self.operation(strength if operator in FROM_THE_RIGHT else strength + 1)
            left = Binary(operator, left, right)
        return left

    def operand(self):
        token = self.take()
        if token.kind == "number":
            is_whole = token.text.isdigit()
            return Number(int(token.text) if is_whole else float(token.text))
        if token.kind == "name":
            return self.call(token.text) if self.is_next("(") else Name(token.text)
        if token.kind == "operator" and token.text == "-":
            return Unary("-", self.operation(UNARY))
        if token.kind == "operator" and token.text == "(":
            inner = self.choice()
            self.expect("operator", ")")
            return inner
        raise SyntaxProblem("expected a value", token.position)

    def call(self, function):
        self.take()
        arguments = []
        while not self.is_next(")"):
            if arguments:
                self.expect("operator", ",")
            arguments.append(self.choice())
        self.take()
        return Call(function, tuple(arguments))
