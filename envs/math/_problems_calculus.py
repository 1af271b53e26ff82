"""Problems of `math/problems-v0` of calculus, matrices and geometry."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.envs.math._problem import Family, ProblemSampler, SampledProblem, ask, latex, polynomial, root, times


def derivatives(dice: ProblemSampler, level: int) -> SampledProblem:
    """Slopes."""
    if level == 1:
        a, b, c, d = (dice.signed(1, 9) for _ in range(4))
        return ask(
            "Let f(x) = {f}. What is f'({x})?",
            "3 * ({a}) * ({x}) ** 2 + 2 * ({b}) * ({x}) + ({c})",
            words={"f": polynomial((a, b, c, d))},
            a=a,
            b=b,
            c=c,
            x=dice.signed(1, 6),
        )
    if level == 2:
        a, b = dice.between(2, 6), dice.signed(1, 6)
        return ask(
            "Let f(x) = x^2 ({p})^{n}. What is f'({x})?",
            "2 * ({x}) * (({a}) * ({x}) + ({b})) ** {n} + ({x}) ** 2 * {n} * {a} * ({a} * ({x}) + ({b})) ** ({n} - 1)",
            words={"p": polynomial((a, b))},
            a=a,
            b=b,
            n=dice.between(2, 4),
            x=dice.signed(1, 4),
        )
    a, b, c = dice.between(2, 9), dice.signed(1, 9), dice.signed(1, 9)
    return ask(
        "Find the derivative of ({p}) e^{{{k}x}} with respect to x, and answer with a formula in x.",
        "({k} * {a}, 2 * {a} + {k} * ({b}), ({b}) + {k} * ({c}))",
        lambda parts: f"({polynomial(parts)}) e^{{{k}x}}",
        words={"p": polynomial((a, b, c))},
        a=a,
        b=b,
        c=c,
        k=(k := dice.between(2, 6)),
    )


def integrals(dice: ProblemSampler, level: int) -> SampledProblem:
    """Definite integrals."""
    if level == 1:
        a, b, c = (dice.signed(1, 9) for _ in range(3))
        return ask(
            "Compute the integral of {p} from x = {l} to x = {h}.",
            "Fraction({a}, 3) * ({h} ** 3 - {l} ** 3) + Fraction({b}, 2) * ({h} ** 2 - {l} ** 2) + ({c}) * ({h} - {l})",
            words={"p": polynomial((a, b, c))},
            a=a,
            b=b,
            c=c,
            l=(low := dice.between(0, 4)),
            h=low + dice.between(1, 5),
        )
    if level == 2:
        s, d = dice.signed(1, 6), dice.between(1, 6)
        c = s * (s + d)  # x^2 meets (2s + d) x - c in s and s + d
        return ask(
            "What is the area of the region between the curves y = x^2 and y = {line}?",
            "Fraction(isqrt(({m}) ** 2 + 4 * ({k})) ** 3, 6)",
            words={"line": polynomial((2 * s + d, -c))},
            m=2 * s + d,
            k=-c,
        )
    n, k = dice.between(2, 40), dice.between(2, 9)
    return ask(
        "Compute the integral of {k}/(x + {a}) from x = 0 to x = {b}. Answer with a logarithm.",
        "Fraction({a} + {b}, {a})",
        lambda ratio: f"{k} \\ln({latex(ratio)})",
        k=k,
        a=n,
        b=dice.between(1, 40),
    )


def determinants(dice: ProblemSampler, level: int) -> SampledProblem:
    """Determinants of small matrices."""
    if level == 1:
        return ask(
            "What is the determinant of the matrix with the rows ({a}, {b}) and ({c}, {d})?",
            "({a}) * ({d}) - ({b}) * ({c})",
            numbers={name: dice.signed(1, 15) for name in "abcd"},
        )
    numbers = {name: dice.signed(1, 7) for name in "abcdefghi"}
    if level == 2:
        return ask(
            "What is the determinant of the matrix with the rows ({a}, {b}, {c}), ({d}, {e}, {f}) and ({g}, {h}, {i})?",
            "({a}) * (({e}) * ({i}) - ({f}) * ({h})) - ({b}) * (({d}) * ({i}) - ({f}) * ({g})) + ({c}) * (({d}) * "
            "({h}) - ({e}) * ({g}))",
            numbers=numbers,
        )
    while numbers["a"] * numbers["e"] == numbers["b"] * numbers["d"]:
        numbers = {name: dice.signed(1, 7) for name in "abcdefghi"}
    del numbers["i"]
    return ask(
        "For which number k is the matrix with the rows ({a}, {b}, {c}), ({d}, {e}, {f}) and ({g}, {h}, k) singular?",
        "Fraction(({a}) * ({f}) * ({h}) - ({b}) * ({f}) * ({g}) - ({c}) * (({d}) * ({h}) - ({e}) * ({g})), ({a}) * "
        "({e}) - ({b}) * ({d}))",
        numbers=numbers,
    )


def matrices(dice: ProblemSampler, level: int) -> SampledProblem:
    """Products, inverses and powers."""
    if level == 1:
        return ask(
            "A has the rows ({a}, {b}) and ({c}, {d}), B has the rows ({e}, {f}) and ({g}, {h}). What is the matrix "
            "AB?",
            "[[({a}) * ({e}) + ({b}) * ({g}), ({a}) * ({f}) + ({b}) * ({h})], [({c}) * ({e}) + ({d}) * ({g}), ({c}) * "
            "({f}) + ({d}) * ({h})]]",
            _matrix,
            numbers={name: dice.signed(1, 9) for name in "abcdefgh"},
        )
    numbers = {name: dice.signed(1, 9 if level == 2 else 4) for name in "abcd"}
    while numbers["a"] * numbers["d"] == numbers["b"] * numbers["c"]:
        numbers = {name: dice.signed(1, 9 if level == 2 else 4) for name in "abcd"}
    if level == 2:
        return ask(
            "A is the matrix with the rows ({a}, {b}) and ({c}, {d}). What is the sum of all four entries of its "
            "inverse?",
            "Fraction(({d}) - ({b}) - ({c}) + ({a}), ({a}) * ({d}) - ({b}) * ({c}))",
            numbers=numbers,
        )
    return ask(
        "A is the matrix with the rows ({a}, {b}) and ({c}, {d}). What is the trace of A^{n}?",
        "reduce(lambda t, _: (t[1], (({a}) + ({d})) * t[1] - (({a}) * ({d}) - ({b}) * ({c})) * t[0]), range({n} - 1), "
        "(2, ({a}) + ({d})))[1]",
        n=dice.between(3, 6),
        numbers=numbers,
    )


def _matrix(rows: list[list[int]]) -> str:
    return "\\begin{pmatrix}" + "\\\\".join("&".join(map(str, row)) for row in rows) + "\\end{pmatrix}"


def areas(dice: ProblemSampler, level: int) -> SampledProblem:
    """Plane figures."""
    if level == 1:
        return ask(
            "A trapezoid has parallel sides of {a} cm and {b} cm, and its height is {h} cm. What is its area in square "
            "centimeters?",
            "Fraction(({a} + {b}) * {h}, 2)",
            a=dice.between(3, 40),
            b=dice.between(3, 40),
            h=dice.between(2, 30),
        )
    if level == 2:
        return ask(
            "From a circular disk with a radius of {r} cm, a concentric disk with a radius of {q} cm is cut out, and "
            "of the ring that is left a sector of {w} degrees is kept. What is its area in square centimeters, as a "
            "multiple of \\pi?",
            "Fraction(({r} ** 2 - {q} ** 2) * {w}, 360)",
            lambda factor: times(factor, "\\pi"),
            r=dice.between(10, 30),
            q=dice.between(2, 9),
            w=dice.between(20, 340, 10),
        )
    while True:
        a, b, c, d, e, f = (dice.between(-12, 12) for _ in range(6))
        if (c - a) * (f - b) != (e - a) * (d - b):
            break
    return ask(
        "What is the area of the triangle with the corners ({a}, {b}), ({c}, {d}) and ({e}, {f})?",
        "Fraction(abs((({c}) - ({a})) * (({f}) - ({b})) - (({e}) - ({a})) * (({d}) - ({b}))), 2)",
        a=a,
        b=b,
        c=c,
        d=d,
        e=e,
        f=f,
    )


def solids(dice: ProblemSampler, level: int) -> SampledProblem:
    """Volumes and surfaces."""
    if level == 1:
        return ask(
            "A box without a lid is {a} cm long, {b} cm wide and {c} cm high. What is the area of its outside, in "
            "square centimeters?",
            "{a} * {b} + 2 * {c} * ({a} + {b})",
            a=dice.between(3, 30),
            b=dice.between(3, 30),
            c=dice.between(3, 30),
        )
    if level == 2:
        return ask(
            "A cone and a cylinder have the same radius of {r} cm. The cone is {h} cm high and stands on the cylinder, "
            "which is {k} cm high. What is the volume of both together in cubic centimeters, as a multiple of \\pi?",
            "Fraction({r} ** 2 * ({h} + 3 * {k}), 3)",
            lambda factor: times(factor, "\\pi"),
            r=dice.between(2, 15),
            h=dice.between(2, 20),
            k=dice.between(2, 20),
        )
    return ask(
        "A ball with a radius of {r} cm is put into a cylinder with a radius of {s} cm that is partly filled with "
        "water. It is covered by the water, and none runs over. By how many centimeters does the water rise?",
        "Fraction(4 * {r} ** 3, 3 * {s} ** 2)",
        r=dice.between(2, 9),
        s=dice.between(10, 25),
    )


def distances(dice: ProblemSampler, level: int) -> SampledProblem:
    """Right triangles and coordinates; the answers are roots."""
    if level == 1:
        return ask(
            "The legs of a right triangle are {a} cm and {b} cm long. How many centimeters long is its hypotenuse? "
            "Give the exact value.",
            "{a} ** 2 + {b} ** 2",
            root,
            a=dice.between(2, 25),
            b=dice.between(2, 25),
        )
    if level == 2:
        return ask(
            "What is the exact distance of the points ({a}, {b}, {c}) and ({d}, {e}, {f})?",
            "(({a}) - ({d})) ** 2 + (({b}) - ({e})) ** 2 + (({c}) - ({f})) ** 2",
            root,
            numbers={name: dice.between(-9, 0) for name in "abc"} | {name: dice.between(1, 9) for name in "def"},
        )
    return ask(
        "Two sides of a triangle are {a} cm and {b} cm long, and the angle between them is {w} degrees. How many "
        "centimeters long is the third side? Give the exact value.",
        "{a} ** 2 + {b} ** 2 - ({a} * {b} if {w} == 60 else -{a} * {b} if {w} == 120 else 0)",
        root,
        a=dice.between(2, 25),
        b=dice.between(26, 40),
        w=dice.pick((60, 90, 120)),
    )


def vectors(dice: ProblemSampler, level: int) -> SampledProblem:
    """Vectors in space."""
    numbers = {name: dice.signed(1, 9) for name in "abcdef"}
    if level == 1:
        return ask(
            "What is the dot product of the vectors ({a}, {b}, {c}) and ({d}, {e}, {f})?",
            "({a}) * ({d}) + ({b}) * ({e}) + ({c}) * ({f})",
            numbers=numbers,
        )
    if level == 2:
        del numbers["f"]
        return ask(
            "For which number t are the vectors ({a}, {b}, {c}) and ({d}, {e}, t) at a right angle to each other?",
            "Fraction(-(({a}) * ({d}) + ({b}) * ({e})), {c})",
            numbers=numbers,
        )
    return ask(
        "What is the square of the area of the parallelogram that the vectors ({a}, {b}, {c}) and ({d}, {e}, {f}) "
        "span?",
        "(({a}) ** 2 + ({b}) ** 2 + ({c}) ** 2) * (({d}) ** 2 + ({e}) ** 2 + ({f}) ** 2) - (({a}) * ({d}) + ({b}) * "
        "({e}) + ({c}) * ({f})) ** 2",
        numbers=numbers,
    )


CALCULUS: Mapping[str, Family] = MappingProxyType(
    {
        "derivatives": derivatives,
        "integrals": integrals,
        "determinants": determinants,
        "matrices": matrices,
        "areas": areas,
        "solids": solids,
        "distances": distances,
        "vectors": vectors,
    }
)
