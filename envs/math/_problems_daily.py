"""Problems of `math/problems-v0` from daily life: money that grows, units, days and hours, shares."""

from calendar import month_name
from collections.abc import Mapping
from datetime import date, timedelta
from types import MappingProxyType

from envgym.envs.math._problem import Family, ProblemSampler, SampledProblem, ask, tupled


def interest(dice: ProblemSampler, level: int) -> SampledProblem:
    """Money that grows."""
    amount, percent = dice.between(400, 9000, 200), dice.between(2, 9)
    if level == 1:
        return ask(
            "{n} dollars earn simple interest of {p} percent a year. How many dollars of interest do they earn in {t} "
            "months?",
            "Fraction({n} * {p} * {t}, 1200)",
            n=amount,
            p=percent,
            t=dice.between(3, 42, 3),
        )
    if level == 2:
        return ask(
            "{n} dollars are saved at {p} percent a year, and the interest is added at the end of each year. How many "
            "dollars are there after 2 years? Give the exact number.",
            "Fraction({n} * (100 + {p}) ** 2, 10000)",
            n=amount,
            p=percent,
        )
    return ask(
        "At the beginning of each of 3 years, {n} dollars are paid into an account with {p} percent of interest a "
        "year, which is added at the end of each year. How many dollars are there at the end of the third year? Give "
        "the exact number.",
        "sum(Fraction({n} * (100 + {p}) ** k, 100 ** k) for k in (1, 2, 3))",
        n=amount,
        p=percent,
    )


def units(dice: ProblemSampler, level: int) -> SampledProblem:
    """Conversions."""
    if level == 1:
        return ask(
            "A runner covers {d} meters in {t} seconds. What is the average speed in kilometers per hour?",
            "Fraction({d} * 36, {t} * 10)",
            d=dice.between(100, 900, 25),
            t=dice.between(20, 150),
        )
    if level == 2:
        return ask(
            "A floor is {a} m {b} cm long and {c} m wide. How many square tiles with sides of {s} cm have "
            "together the same area as the floor? Give the exact number.",
            "Fraction((100 * {a} + {b}) * 100 * {c}, {s} ** 2)",
            a=dice.between(2, 9),
            b=dice.between(10, 90, 10),
            c=dice.between(2, 9),
            s=dice.pick((10, 20, 25, 30, 40, 50)),
        )
    return ask(
        "A metal has a density of {r} grams per cubic centimeter. A bar of it is {a} m long, {b} cm wide and {c} mm "
        "high. What is its mass in kilograms?",
        "Fraction({r} * 100 * {a} * {b} * {c}, 10 * 1000)",
        r=dice.between(3, 19),
        a=dice.between(2, 9),
        b=dice.between(3, 24),
        c=dice.between(5, 60),
    )


def days(dice: ProblemSampler, level: int) -> SampledProblem:
    """Calendars and clocks."""
    if level == 1:
        start, length = dice.between(300, 1200), dice.between(70, 900)
        return ask(
            "A train leaves at {h}:{m:02d} and arrives at {i}:{n:02d} on the next day, by the same clock. How many "
            "minutes does it travel?",
            "({i} + 24 - {h}) * 60 + {n} - {m}",
            h=start // 60,
            m=start % 60,
            i=(end := (start + length) % 1440 % 780) // 60,
            n=end % 60,
        )
    first = date(2001, 1, 1) + timedelta(days=dice.between(0, 9000))
    last = first + timedelta(days=dice.between(40, 330) if level == 2 else dice.between(400, 4000))
    text = "How many days after {first} is {last}?"
    work = "date({y2}, {m2}, {d2}).toordinal() - date({y1}, {m1}, {d1}).toordinal()"
    if level == 3:
        text = "How many Sundays are there from {first} to {last}, both days included?"
        work = "date({y2}, {m2}, {d2}).toordinal() // 7 - (date({y1}, {m1}, {d1}).toordinal() - 1) // 7"
    return ask(
        text,
        work,
        words={"first": _spoken(first), "last": _spoken(last)},
        y1=first.year,
        m1=first.month,
        d1=first.day,
        y2=last.year,
        m2=last.month,
        d2=last.day,
    )


def _spoken(day: date) -> str:
    return f"{month_name[day.month]} {day.day}, {day.year}"


def shares(dice: ProblemSampler, level: int) -> SampledProblem:
    """Ratios and proportion."""
    a, b, c = dice.several(range(2, 12), 3)
    if level == 1:
        return ask(
            "{s} coins are shared in the ratio {a} : {b}. How many coins is the difference of the two shares?",
            "{s} * abs({a} - {b}) // ({a} + {b})",
            s=(a + b) * dice.between(5, 60),
            a=a,
            b=b,
        )
    if level == 2:
        return ask(
            "{n} machines make {k} parts in {h} hours. How many parts do {m} such machines make in {t} hours?",
            "Fraction({k} * {m} * {t}, {n} * {h})",
            n=a,
            k=a * b * dice.between(3, 30),
            h=b,
            m=dice.between(2, 20),
            t=dice.between(2, 20),
        )
    return ask(
        "The shares of three partners are in the ratio {a} : {b} : {c}. The first partner passes {p} percent of the "
        "own share on to the second one, and the third then has {s} dollars. How many dollars do the first and the "
        "second partner have then, in this order? Answer with an ordered pair.",
        "(Fraction({s} * {a} * (100 - {p}), 100 * {c}), Fraction({s} * (100 * {b} + {a} * {p}), 100 * {c}))",
        tupled,
        a=a,
        b=b,
        c=c,
        p=dice.between(10, 60, 5),
        s=c * dice.between(20, 90, 10),
    )


DAILY: Mapping[str, Family] = MappingProxyType({"interest": interest, "units": units, "days": days, "shares": shares})
