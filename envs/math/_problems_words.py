"""Word problems of `math/problems-v0`: rates, percentages, mixtures, ages, work, prices, means."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.envs.math._problem import Family, ProblemSampler, SampledProblem, ask


def rates(dice: ProblemSampler, level: int) -> SampledProblem:
    """Distance, speed and time."""
    who = {"who": dice.person()}
    if level == 1:
        return ask(
            "{who} rides a bicycle at {v} km/h for {t} minutes. How many kilometers does {who} ride?",
            "Fraction({v} * {t}, 60)",
            words=who,
            v=dice.between(12, 30),
            t=dice.between(20, 110, 5),
        )
    if level == 2:
        return ask(
            "Two trains start at the same time from two towns that are {d} km apart and run toward each other, one at "
            "{v} km/h and the other at {w} km/h. After how many minutes do they meet?",
            "Fraction({d} * 60, {v} + {w})",
            d=dice.between(60, 600, 15),
            v=dice.between(50, 120, 5),
            w=dice.between(50, 120, 5),
        )
    return ask(
        "{who} leaves home on foot at {v} km/h. A friend follows by bicycle {t} minutes later at {w} km/h on the same "
        "road. How many kilometers from home does the friend catch up?",
        "Fraction({v} * {w} * {t}, 60 * ({w} - {v}))",
        words=who,
        v=dice.between(3, 7),
        t=dice.between(10, 90, 5),
        w=dice.between(12, 28),
    )


def percentages(dice: ProblemSampler, level: int) -> SampledProblem:
    """Parts of a hundred."""
    if level == 1:
        return ask(
            "A town has {n} inhabitants, and {p} percent of them are children. How many of the inhabitants are not "
            "children?",
            "Fraction({n} * (100 - {p}), 100)",
            n=dice.between(1200, 9800, 100),
            p=dice.between(11, 47),
        )
    if level == 2:
        return ask(
            "The price of a coat is {n} dollars. It is raised by {p} percent, and later the new price is cut by {q} "
            "percent. What is the price in dollars now?",
            "Fraction({n} * (100 + {p}) * (100 - {q}), 10000)",
            n=dice.between(60, 400, 20),
            p=dice.between(5, 40, 5),
            q=dice.between(5, 40, 5),
        )
    return ask(
        "After a discount of {p} percent and then a tax of {q} percent on the reduced price, a lamp costs {n} dollars. "
        "What was its price in dollars before the discount and the tax?",
        "Fraction({n} * 10000, (100 - {p}) * (100 + {q}))",
        n=dice.between(18, 240, 6),
        p=dice.between(10, 60, 5),
        q=dice.between(5, 25, 5),
    )


def mixtures(dice: ProblemSampler, level: int) -> SampledProblem:
    """Solutions of two strengths."""
    if level == 1:
        return ask(
            "{a} liters of a solution with {p} percent salt are mixed with {b} liters of a solution with {q} percent "
            "salt. How many percent of the mixture is salt?",
            "Fraction({a} * {p} + {b} * {q}, {a} + {b})",
            a=dice.between(2, 20),
            b=dice.between(2, 20),
            p=dice.between(5, 30),
            q=dice.between(35, 80),
        )
    if level == 2:
        return ask(
            "A tank holds {a} liters of a solution with {p} percent acid. How many liters of pure water must be added "
            "so that the solution has {q} percent acid?",
            "Fraction({a} * {p}, {q}) - {a}",
            a=dice.between(5, 60),
            p=dice.between(30, 80, 2),
            q=dice.between(5, 25),
        )
    return ask(
        "A chemist needs {n} liters of a solution with {r} percent alcohol and has solutions with {p} percent and {q} "
        "percent. How many liters of the one with {p} percent must be used?",
        "Fraction({n} * ({q} - {r}), {q} - {p})",
        n=dice.between(6, 90, 3),
        p=dice.between(5, 24),
        r=dice.between(26, 49),
        q=dice.between(51, 95),
    )


def ages(dice: ProblemSampler, level: int) -> SampledProblem:
    """How old somebody is."""
    one, other = dice.several(("Ada", "Ben", "Cleo", "Dina", "Finn", "Hana", "Ivan", "Kofi", "Nora", "Omar"), 2)
    words = {"one": one, "other": other}
    if level == 1:
        younger, apart = dice.between(4, 40), dice.between(2, 25)
        return ask(
            "{one} is {d} years older than {other}. Together they are {s} years old. How old is {one}?",
            "({s} + {d}) // 2",
            words=words,
            d=apart,
            s=2 * younger + apart,
        )
    if level == 2:
        younger, factor, years = dice.between(3, 20), dice.between(2, 4), dice.between(2, 12)
        return ask(
            "In {t} years {one} will be {k} times as old as {other} will be then. {one} is {d} years older than "
            "{other}. How old is {other} now?",
            "{d} // ({k} - 1) - {t}",
            words=words,
            t=years,
            k=factor,
            d=(factor - 1) * (younger + years),
        )
    younger, older, past = dice.between(10, 30), dice.between(32, 70), dice.between(2, 8)
    return ask(
        "{p} years ago the ages of {one} and {other} added up to {s}. In {t} years, {k} times the age of {one} plus "
        "the age of {other} will be {w}. How old is {one} now?",
        "({w} - ({k} + 1) * {t} - ({s} + 2 * {p})) // ({k} - 1)",
        words=words,
        p=past,
        s=younger + older - 2 * past,
        t=(later := dice.between(2, 15)),
        k=(factor := dice.between(2, 4)),
        w=factor * (older + later) + younger + later,
    )


def shared_work(dice: ProblemSampler, level: int) -> SampledProblem:
    """Several at one job."""
    if level == 1:
        return ask(
            "One pump fills a pool in {a} hours, another one in {b} hours. How many hours do both together need?",
            "Fraction({a} * {b}, {a} + {b})",
            a=dice.between(2, 20),
            b=dice.between(2, 20),
        )
    if level == 2:
        return ask(
            "Two pipes fill a tank in {a} and in {b} hours, and a drain empties the full tank in {c} hours. All three "
            "are open, and the tank is empty at first. After how many hours is it full?",
            "1 / (Fraction(1, {a}) + Fraction(1, {b}) - Fraction(1, {c}))",
            a=dice.between(2, 12),
            b=dice.between(3, 15),
            c=dice.between(16, 40),
        )
    return ask(
        "{one} paints a house alone in {a} hours, a helper alone in {b} hours. {one} begins alone, and the helper "
        "joins after {h} hours. How many hours after the beginning is the house painted?",
        "{h} + (1 - Fraction({h}, {a})) * Fraction({a} * {b}, {a} + {b})",
        words={"one": dice.person()},
        a=dice.between(9, 24),
        b=dice.between(6, 24),
        h=dice.between(2, 6),
    )


def tickets(dice: ProblemSampler, level: int) -> SampledProblem:
    """Two kinds, their number and their price."""
    first, second = dice.between(11, 90), dice.between(11, 90)
    cheap = dice.between(3, 9)
    dear = cheap + dice.between(2, 9)
    if level == 1:
        return ask(
            "A theater sells {n} tickets for children at {a} dollars each and {m} tickets for adults at {b} dollars "
            "each. How many dollars does it earn?",
            "{n} * {a} + {m} * {b}",
            n=first,
            a=cheap,
            m=second,
            b=dear,
        )
    if level == 2:
        return ask(
            "A theater sells {n} tickets. Tickets for children cost {a} dollars, tickets for adults cost {b} dollars, "
            "and the tickets sold cost {s} dollars in all. How many tickets for adults are sold?",
            "({s} - {n} * {a}) // ({b} - {a})",
            n=first + second,
            a=cheap,
            b=dear,
            s=first * cheap + second * dear,
        )
    pens, pads, price, dearer = dice.between(3, 9), dice.between(2, 8), dice.between(40, 190), dice.between(15, 90)
    return ask(
        "{n} pens and {m} pads cost {s} cents. One pad costs {d} cents more than one pen. How many cents do {k} pens "
        "and {k} pads cost?",
        "{k} * (2 * ({s} - {m} * {d}) // ({n} + {m}) + {d})",
        n=pens,
        m=pads,
        s=pens * price + pads * (price + dearer),
        d=dearer,
        k=dice.between(2, 12),
    )


def averages(dice: ProblemSampler, level: int) -> SampledProblem:
    """Means."""
    if level == 1:
        a, b, c, d, e = (dice.between(10, 99) for _ in range(5))
        return ask(
            "What is the mean of the numbers {a}, {b}, {c}, {d} and {e}?",
            "Fraction({a} + {b} + {c} + {d} + {e}, 5)",
            a=a,
            b=b,
            c=c,
            d=d,
            e=e,
        )
    if level == 2:
        return ask(
            "The mean of {n} numbers is {m}. One more number is added, and the mean becomes {w}. Which number was "
            "added?",
            "({n} + 1) * {w} - {n} * {m}",
            n=dice.between(4, 20),
            m=dice.between(20, 90),
            w=dice.between(20, 90),
        )
    return ask(
        "In a test, the {n} pupils of one class have a mean of {a} points, the {m} pupils of another class a mean of "
        "{b} points. The mean of the {k} best pupils of both classes is {c} points. What is the mean of all the "
        "others?",
        "Fraction({n} * {a} + {m} * {b} - {k} * {c}, {n} + {m} - {k})",
        n=dice.between(15, 30),
        m=dice.between(15, 30),
        a=dice.between(50, 70),
        b=dice.between(50, 70),
        k=dice.between(3, 9),
        c=dice.between(82, 98),
    )


WORDS: Mapping[str, Family] = MappingProxyType(
    {
        "rates": rates,
        "percentages": percentages,
        "mixtures": mixtures,
        "ages": ages,
        "shared_work": shared_work,
        "tickets": tickets,
        "averages": averages,
    }
)
