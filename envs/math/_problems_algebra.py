"""Problems of `math/problems-v0` about equations, inequalities, roots, logarithms, complex numbers and parabolas."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.envs.math._problem import Family, ProblemSampler, SampledProblem, ask, latex, listed, polynomial, tupled


def equations(dice: ProblemSampler, level: int) -> SampledProblem:
    """One equation with one unknown."""
    if level == 1:
        a, c = dice.several(range(2, 15), 2)
        b, d = dice.signed(2, 40), dice.signed(2, 40)
        sides = {"left": polynomial((a, b)), "right": polynomial((c, d))}
        return ask("Solve {left} = {right} for x.", "Fraction({d} - {b}, {a} - {c})", words=sides, a=a, b=b, c=c, d=d)
    if level == 2:
        return ask(
            "Solve (x + {a})/{b} - (x - {c})/{d} = {e} for x.",
            "({e} - Fraction({a}, {b}) - Fraction({c}, {d})) / (Fraction(1, {b}) - Fraction(1, {d}))",
            a=dice.between(1, 20),
            b=dice.between(2, 6),
            c=dice.between(1, 20),
            d=dice.between(7, 12),
            e=dice.between(2, 9),
        )
    solution, c = dice.between(2, 25), dice.between(2, 9)
    other = dice.between(1, c)  # (x - solution)(x + other) = (x + c)^2 - ax - b
    return ask(
        "Solve \\sqrt{{{a}x + {b}}} = x + {c} for x > 0.",
        "next(x for x in range(1, 100) if {a} * x + {b} == (x + {c}) ** 2)",
        a=2 * c - other + solution,
        b=c**2 + solution * other,
        c=c,
    )


def linear_systems(dice: ProblemSampler, level: int) -> SampledProblem:
    """Two or three unknowns."""
    size = {1: 6, 2: 15, 3: 9}[level]
    x, y, z = (dice.signed(1, size) for _ in range(3))
    while True:
        rows = [[dice.signed(1, 9) for _ in range(3)] for _ in range(3)]
        (a, b, i), (c, d, j), (e, f, k) = rows
        minor = a * d - b * c
        full = a * (d * k - j * f) - b * (c * k - j * e) + i * (c * f - d * e)
        if minor and full:
            break
    if level < 3:
        p, q = a * x + b * y, c * x + d * y
        return ask(
            "Solve the system {first} = {p} and {second} = {q}. Answer with the ordered pair (x, y).",
            "(Fraction({p} * {d} - {b} * {q}, {a} * {d} - {b} * {c}), Fraction({a} * {q} - {p} * {c}, {a} * {d} - {b} "
            "* {c}))",
            tupled,
            words={"first": _sum(a, b), "second": _sum(c, d)},
            a=a,
            b=b,
            p=p,
            c=c,
            d=d,
            q=q,
        )
    p, q, r = (row[0] * x + row[1] * y + row[2] * z for row in rows)
    return ask(
        "Solve the system {first} = {p}, {second} = {q}, {third} = {r}. Answer with the ordered triple (x, y, z).",
        "next((x, y, z) for x in range(-9, 10) for y in range(-9, 10) for z in range(-9, 10) if {a} * x + {b} * y + "
        "{i} * z == {p} and {c} * x + {d} * y + {j} * z == {q} and {e} * x + {f} * y + {k} * z == {r})",
        tupled,
        words={"first": _sum(a, b, i), "second": _sum(c, d, j), "third": _sum(e, f, k)},
        a=a,
        b=b,
        i=i,
        p=p,
        c=c,
        d=d,
        j=j,
        q=q,
        e=e,
        f=f,
        k=k,
        r=r,
    )


def _sum(*coefficients: int) -> str:
    """Write `2x - y + 3z`."""
    text = ""
    for coefficient, name in zip(coefficients, "xyz", strict=False):
        sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
        text += f"{sign}{'' if abs(coefficient) == 1 else abs(coefficient)}{name}"
    return text


def roots(dice: ProblemSampler, level: int) -> SampledProblem:
    """Roots of polynomials."""
    first, second, third = dice.several([n for n in range(-9, 10) if n], 3)
    if level == 1:
        b, c = -(first + second), first * second
        return ask(
            "Find all roots of {p}. Answer with the set of roots.",
            "sorted(x for x in range(-99, 100) if x ** 2 + ({b}) * x + ({c}) == 0)",
            _set,
            words={"p": polynomial((1, b, c))},
            b=b,
            c=c,
        )
    if level == 2:
        b, c, d = -(first + second + third), first * second + first * third + second * third, -first * second * third
        return ask(
            "Find all roots of {p}. Answer with the set of roots.",
            "sorted(x for x in range(-999, 1000) if x ** 3 + ({b}) * x ** 2 + ({c}) * x + ({d}) == 0)",
            _set,
            words={"p": polynomial((1, b, c, d))},
            b=b,
            c=c,
            d=d,
        )
    a, b, c = dice.between(2, 9), dice.signed(3, 20), dice.signed(1, 12)
    return ask(
        "What is the sum of the squares of the two complex roots of {p}?",
        "Fraction(({b}) ** 2 - 2 * {a} * ({c}), {a} ** 2)",
        words={"p": polynomial((a, b, c))},
        a=a,
        b=b,
        c=c,
    )


def _set(values: list[int]) -> str:
    return f"\\{{{listed(values)}\\}}"


def inequalities(dice: ProblemSampler, level: int) -> SampledProblem:
    """Intervals as answers."""
    if level == 1:
        a, c = dice.several(range(2, 12), 2)
        b, d = dice.signed(1, 30), dice.signed(1, 30)
        return ask(
            "Solve {left} < {right} for x. Answer with an interval.",
            "Fraction({d} - ({b}), {a} - {c})",
            lambda edge: f"(-\\infty, {latex(edge)})" if a > c else f"({latex(edge)}, \\infty)",
            words={"left": polynomial((a, b)), "right": polynomial((c, d))},
            a=a,
            b=b,
            c=c,
            d=d,
        )
    if level == 2:
        low, high = sorted(dice.several(range(-12, 13), 2))
        b, c = -(low + high), low * high
        return ask(
            "Solve {p} \\le 0 for x. Answer with an interval.",
            "sorted(x for x in range(-99, 100) if x ** 2 + ({b}) * x + ({c}) == 0)",
            lambda edges: f"[{listed(edges)}]",
            words={"p": polynomial((1, b, c))},
            b=b,
            c=c,
        )
    return ask(
        "Solve |{p}| \\ge {m} for x. Answer with a union of intervals.",
        "sorted([Fraction({m} - ({b}), {a}), Fraction(-{m} - ({b}), {a})])",
        lambda edges: f"(-\\infty, {latex(edges[0])}] \\cup [{latex(edges[1])}, \\infty)",
        words={"p": polynomial((a := dice.between(2, 9), b := dice.signed(1, 20)))},
        a=a,
        b=b,
        m=dice.between(1, 30),
    )


def logarithms(dice: ProblemSampler, level: int) -> SampledProblem:
    """Exponentials and logarithms."""
    base = dice.pick((2, 3, 5, 7))
    if level == 1:
        return ask(
            "What is \\log_{{{b}}}({b}^{{{m}}} \\cdot {c}^{{{n}}}), where {c} = {b}^{{{k}}}?",
            "{m} + {n} * {k}",
            b=base,
            m=dice.between(2, 30),
            n=dice.between(2, 12),
            k=(power := dice.between(2, 4)),
            c=base**power,
        )
    if level == 2:
        return ask(
            "Solve {p}^{{x + {a}}} = {q}^{{x - {c}}} for x.",
            "Fraction({i} * {a} + {j} * {c}, {j} - {i})",
            i=(i := dice.between(1, 3)),
            j=(j := dice.between(i + 1, 5)),
            a=dice.between(1, 30),
            c=dice.between(1, 30),
            p=base**i,
            q=base**j,
        )
    solution, apart = dice.between(2, 40), dice.between(1, 30)
    return ask(
        "Solve \\ln(x) + \\ln(x + {a}) = \\ln({m}) for x.",
        "next(x for x in range(1, {m} + 1) if x * (x + {a}) == {m})",
        a=apart,
        m=solution * (solution + apart),
    )


def complex_numbers(dice: ProblemSampler, level: int) -> SampledProblem:
    """Numbers with an imaginary part, answered as pairs."""
    a, b, c, d = (dice.signed(1, 9) for _ in range(4))
    form = "Answer with the ordered pair of its real and its imaginary part."
    words = {"u": _complex(a, b), "v": _complex(c, d), "form": form}
    if level == 1:
        text = "Compute the product ({u})({v}). {form}"
        work = "({a} * {c} - ({b}) * ({d}), {a} * ({d}) + ({b}) * ({c}))"
        return ask(text, work, tupled, words=words, a=a, b=b, c=c, d=d)
    if level == 2:
        text = "Compute the quotient ({u})/({v}). {form}"
        work = (
            "(Fraction({a} * ({c}) + ({b}) * ({d}), ({c}) ** 2 + ({d}) ** 2), "
            "Fraction(({b}) * ({c}) - {a} * ({d}), ({c}) ** 2 + ({d}) ** 2))"
        )
        return ask(text, work, tupled, words=words, a=a, b=b, c=c, d=d)
    return ask(
        "What is the sum of the squares of the absolute values of ({u})^{n} and {v}?",
        "(({a}) ** 2 + ({b}) ** 2) ** {n} + ({c}) ** 2 + ({d}) ** 2",
        words=words,
        a=a,
        b=b,
        c=c,
        d=d,
        n=dice.between(2, 4),
    )


def _complex(real: int, imaginary: int) -> str:
    return f"{real} {'-' if imaginary < 0 else '+'} {'' if abs(imaginary) == 1 else abs(imaginary)}i"


def parabolas(dice: ProblemSampler, level: int) -> SampledProblem:
    """The best value of a quadratic function."""
    if level == 1:
        a, b, c = dice.between(2, 7), dice.signed(3, 30), dice.signed(1, 50)
        return ask(
            "What is the smallest value of {p} over all real x?",
            "{c} - Fraction(({b}) ** 2, 4 * {a})",
            words={"p": polynomial((a, b, c))},
            a=a,
            b=b,
            c=c,
        )
    if level == 2:
        return ask(
            "A rectangular field lies along a straight river. {n} meters of fence are used for its other three sides, "
            "and a further fence divides it into two parts, at a right angle to the river. The fence is used up. What "
            "is the largest possible area in square meters?",
            "Fraction({n} ** 2, 12)",
            n=dice.between(60, 900, 2),
        )
    return ask(
        "At a price of {p} dollars a shop sells {n} shirts a week. For each dollar that the price is raised it sells "
        "{k} shirts fewer, for each dollar that it is cut {k} more. A shirt costs the shop {c} dollars. At which "
        "price, not necessarily whole, is its profit the largest?",
        "Fraction({n} + {k} * ({p} + {c}), 2 * {k})",
        p=dice.between(15, 40),
        n=dice.between(60, 200, 10),
        k=dice.between(3, 9),
        c=dice.between(4, 14),
    )


def functions(dice: ProblemSampler, level: int) -> SampledProblem:
    """Composition, inverse, and a polynomial through points."""
    a, b, c, d = dice.between(2, 9), dice.signed(1, 12), dice.between(2, 9), dice.signed(1, 12)
    words = {"f": polynomial((a, b)), "g": polynomial((c, d)), "h": polynomial((1, c, d))}
    if level == 1:
        return ask(
            "Let f(x) = {f} and g(x) = {h}. What is f(g({n}))?",
            "{a} * (({n}) ** 2 + {c} * ({n}) + ({d})) + ({b})",
            words=words,
            a=a,
            b=b,
            c=c,
            d=d,
            n=dice.signed(1, 9),
        )
    if level == 2:
        return ask(
            "Let f(x) = {f} and g(x) = {g}. For which x is f(g(x)) equal to {n}?",
            "(Fraction({n} - ({b}), {a}) - ({d})) / Fraction({c})",
            words=words,
            a=a,
            b=b,
            c=c,
            d=d,
            n=dice.signed(1, 60),
        )
    u, v, w = (dice.signed(1, 20) for _ in range(3))
    return ask(
        "A polynomial p of degree at most 2 has p(0) = {u}, p(1) = {v} and p(2) = {w}. What is p({n})?",
        "({u}) + {n} * (({v}) - ({u})) + {n} * ({n} - 1) // 2 * (({w}) - 2 * ({v}) + ({u}))",
        u=u,
        v=v,
        w=w,
        n=dice.between(3, 12),
    )


ALGEBRA: Mapping[str, Family] = MappingProxyType(
    {
        "equations": equations,
        "linear_systems": linear_systems,
        "roots": roots,
        "inequalities": inequalities,
        "logarithms": logarithms,
        "complex_numbers": complex_numbers,
        "parabolas": parabolas,
        "functions": functions,
    }
)
