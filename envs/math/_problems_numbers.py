"""Problems of `math/problems-v0` about whole numbers: divisors, remainders, digits, counting, chance, sequences."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.envs.math._problem import Family, ProblemSampler, SampledProblem, ask


def common_divisors(dice: ProblemSampler, level: int) -> SampledProblem:
    """Greatest common divisors, least common multiples."""
    shared = dice.between(3, 30)
    if level == 1:
        return ask(
            "What is the greatest common divisor of {a} and {b}?",
            "gcd({a}, {b})",
            a=shared * dice.between(4, 60),
            b=shared * dice.between(4, 60),
        )
    if level == 2:
        return ask(
            "Three lights flash together now. From then on they flash every {a}, every {b} and every {c} seconds. "
            "After how many seconds do all three flash together again?",
            "lcm({a}, {b}, {c})",
            a=2 * dice.between(3, 20),
            b=3 * dice.between(3, 20),
            c=dice.between(5, 40),
        )
    a, b, c = dice.several(range(5, 25), 3)
    return ask(
        "What is the smallest whole number greater than {r} that leaves the remainder {r} when it is divided by {a}, "
        "by {b} and by {c}?",
        "lcm({a}, {b}, {c}) + {r}",
        a=a,
        b=b,
        c=c,
        r=dice.between(1, min(a, b, c) - 1),
    )


def remainders(dice: ProblemSampler, level: int) -> SampledProblem:
    """Modular arithmetic."""
    if level == 1:
        return ask(
            "What is the remainder when {a} times {b} is divided by {m}?",
            "{a} * {b} % {m}",
            a=dice.between(101, 999),
            b=dice.between(101, 999),
            m=dice.between(11, 99),
        )
    if level == 2:
        return ask(
            "What is the remainder when {a}^{{{n}}} is divided by {m}?",
            "{a} ** {n} % {m}",
            a=dice.between(3, 60),
            n=dice.between(20, 900),
            m=dice.between(11, 120),
        )
    first, second = dice.several((5, 7, 8, 9, 11, 13, 17, 19, 23), 2)
    return ask(
        "What is the smallest whole number, 0 or greater, that leaves the remainder {a} when it is divided by {m} and "
        "the remainder {b} when it is divided by {n}?",
        "next(x for x in range({m} * {n}) if x % {m} == {a} and x % {n} == {b})",
        a=dice.between(1, first - 1),
        m=first,
        b=dice.between(1, second - 1),
        n=second,
    )


def divisors(dice: ProblemSampler, level: int) -> SampledProblem:
    """Divisors of one number."""
    number = dice.between(2, 20) * dice.between(2, 20) * dice.between(2, 12)
    text, work = (
        ("What is the sum of all positive divisors of {n}?", "sum(d for d in range(1, {n} + 1) if {n} % d == 0)"),
        (
            "How many of the whole numbers from 1 to {n} have no divisor except 1 in common with {n}?",
            "sum(gcd(k, {n}) == 1 for k in range(1, {n} + 1))",
        ),
        (
            "What is the sum of those positive divisors of {n} that are multiples of the smallest prime number that "
            "divides {n}?",
            "sum(d for d in range(1, {n} + 1) if {n} % d == 0 and d % min(p for p in range(2, {n} + 1) if {n} % p == "
            "0) == 0)",
        ),
    )[level - 1]
    return ask(text, work, n=number)


def bases(dice: ProblemSampler, level: int) -> SampledProblem:
    """Numerals in other bases."""
    base = dice.between(3, 9)
    if level == 1:
        n = dice.between(base**2, base**4)
        return ask(
            "The number {n} is written in base {b}. Read it as such: which number is it in base 10?",
            "int('{n}', {b})",
            n=int(_digits(n, base)),
            b=base,
        )
    if level == 2:
        return ask(
            "What is the sum of the digits of the decimal number {n} when it is written in base {b}?",
            "sum({n} // {b} ** k % {b} for k in range(20))",
            n=dice.between(1000, 99999),
            b=base,
        )
    return ask(
        "The numbers {m} and {n} are written in base {b}. What is their product, written in base {b}?",
        "int(''.join(str(int('{m}', {b}) * int('{n}', {b}) // {b} ** k % {b}) for k in reversed(range(20))))",
        m=int(_digits(dice.between(base, base**3), base)),
        n=int(_digits(dice.between(base, base**3), base)),
        b=base,
    )


def _digits(number: int, base: int) -> str:
    return (_digits(number // base, base) if number >= base else "") + str(number % base)


def counting(dice: ProblemSampler, level: int) -> SampledProblem:
    """How many ways there are."""
    if level == 1:
        return ask(
            "In how many ways can {k} of {n} players be chosen for a team, one of them as its captain?",
            "comb({n}, {k}) * {k}",
            n=dice.between(6, 16),
            k=dice.between(2, 6),
        )
    if level == 2:
        return ask(
            "In how many different orders can {a} equal red, {b} equal blue and {c} equal green flags be hung in a "
            "row?",
            "factorial({a} + {b} + {c}) // (factorial({a}) * factorial({b}) * factorial({c}))",
            a=dice.between(2, 5),
            b=dice.between(2, 5),
            c=dice.between(2, 4),
        )
    return ask(
        "From {m} women and {n} men a committee of {k} persons is chosen. It must have at least {a} women and at least "
        "one man. How many different committees are possible?",
        "sum(comb({m}, w) * comb({n}, {k} - w) for w in range({a}, {k}))",
        m=dice.between(5, 11),
        n=dice.between(5, 11),
        k=dice.between(4, 6),
        a=dice.between(1, 3),
    )


def chances(dice: ProblemSampler, level: int) -> SampledProblem:
    """Probabilities, as fractions."""
    red, blue = dice.between(3, 14), dice.between(3, 14)
    if level == 1:
        return ask(
            "A bag holds {r} red and {b} blue balls. Two are drawn, and the first is not put back. What is the "
            "probability that both are red? Answer with a fraction.",
            "Fraction({r} * ({r} - 1), ({r} + {b}) * ({r} + {b} - 1))",
            r=red,
            b=blue,
        )
    if level == 2:
        sides, other = dice.between(4, 14), dice.between(4, 14)
        return ask(
            "A fair die with the numbers 1 to {m} and a fair die with the numbers 1 to {n} are rolled. What is the "
            "probability that their sum is at least {s}? Answer with a fraction.",
            "Fraction(sum(a + b >= {s} for a, b in product(range(1, {m} + 1), range(1, {n} + 1))), {m} * {n})",
            m=sides,
            n=other,
            s=dice.between(4, sides + other - 1),
        )
    return ask(
        "A bag holds {r} red, {b} blue and {g} green balls. Three are drawn at once. What is the probability that "
        "exactly two of them have the same color? Answer with a fraction.",
        "1 - Fraction(comb({r}, 3) + comb({b}, 3) + comb({g}, 3) + {r} * {b} * {g}, comb({r} + {b} + {g}, 3))",
        r=dice.between(2, 9),
        b=dice.between(2, 9),
        g=dice.between(2, 9),
    )


def sequences(dice: ProblemSampler, level: int) -> SampledProblem:
    """Terms and sums."""
    if level == 1:
        start, step = dice.between(2, 40), dice.signed(2, 15)
        return ask(
            "The sequence {a}, {b}, {c}, ... goes on with equal steps. What is its term number {n}?",
            "{a} + ({n} - 1) * ({b} - {a})",
            a=start,
            b=start + step,
            c=start + 2 * step,
            n=dice.between(12, 90),
        )
    if level == 2:
        return ask(
            "A sequence begins with {a}, and each further term is {q} times the term before. What is the sum of its "
            "first {n} terms?",
            "{a} * ({q} ** {n} - 1) // ({q} - 1)",
            a=dice.between(2, 25),
            q=dice.between(2, 5),
            n=dice.between(4, 8),
        )
    return ask(
        "A sequence is defined by a_1 = {a}, a_2 = {b} and a_{{n+2}} = {p} a_{{n+1}} + {q} a_n. What is a_7?",
        "reduce(lambda x, _: (x[1], {p} * x[1] + {q} * x[0]), range(5), ({a}, {b}))[1]",
        a=dice.between(1, 6),
        b=dice.between(1, 6),
        p=dice.between(2, 4),
        q=dice.signed(2, 4),
    )


def sums(dice: ProblemSampler, level: int) -> SampledProblem:
    """Sums over a range."""
    if level == 1:
        return ask(
            "What is the sum of all whole numbers from {a} to {b}?",
            "sum(range({a}, {b} + 1))",
            a=dice.between(5, 60),
            b=dice.between(70, 400),
        )
    if level == 2:
        return ask(
            "What is the sum of all multiples of {k} from {a} to {b}?",
            "sum(n for n in range({a}, {b} + 1) if n % {k} == 0)",
            a=dice.between(5, 60),
            b=dice.between(100, 500),
            k=dice.between(3, 13),
        )
    return ask(
        "How many whole numbers from 1 to {n} are divisible by {a} or by {b}, but not by {c}?",
        "sum((k % {a} == 0 or k % {b} == 0) and k % {c} != 0 for k in range(1, {n} + 1))",
        n=dice.between(200, 2000),
        a=dice.between(2, 5),
        b=dice.pick((7, 9, 11)),
        c=dice.between(12, 15),
    )


NUMBERS: Mapping[str, Family] = MappingProxyType(
    {
        "common_divisors": common_divisors,
        "remainders": remainders,
        "divisors": divisors,
        "bases": bases,
        "counting": counting,
        "chances": chances,
        "sequences": sequences,
        "sums": sums,
    }
)
