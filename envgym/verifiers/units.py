r"""Units after numbers: an answer is wrong if its unit is another one of the kind of the key's unit.

Read: `5.4 \text{ cents}`, `$5.40`, 12 cm^2, 12 square feet, 60 km/h, 90^\circ, 3 million dollars. The abbreviation, the
singular and the plural are one unit. Words that are not in the table are no units.
"""

import re
from functools import lru_cache

_WORDS = {
    "money": "dollar dollars usd | cent cents | euro euros eur",
    "length": "mm millimeter millimeters millimetre millimetres | cm centimeter centimeters centimetre centimetres"
    " | dm decimeter decimeters | m meter meters metre metres | km kilometer kilometers kilometre kilometres"
    " | in inch inches | ft foot feet | yd yds yard yards | mi mile miles",
    "time": "ms millisecond milliseconds | s sec secs second seconds | min mins minute minutes"
    " | h hr hrs hour hours | day days | week weeks | month months | yr yrs year years",
    "mass": "mg milligram milligrams | g gram grams | kg kilogram kilograms | lb lbs pound pounds | oz ounce ounces"
    " | ton tons | tonne tonnes",
    "volume": "ml milliliter milliliters millilitre millilitres | cl | l liter liters litre litres"
    " | gal gallon gallons | quart quarts | pint pints",
    "angle": "degree degrees deg | radian radians rad rads",
    "temperature": "celsius | fahrenheit",
}
"""Kind -> its units, each with all its names."""
_UNITS = {
    name: (kind, names.split()[0])
    for kind, units in _WORDS.items()
    for names in units.split("|")
    for name in names.split()
}
_SIGNS = str.maketrans({"\u00b2": "^2", "\u00b3": "^3", **dict.fromkeys("\u00a0\u2009\u202f", " ")})
_STYLE = re.compile(r"\\(?:text(?:rm|bf|it|normal)?|math(?:rm|bf|it)|mbox|rm)(?![A-Za-z])")
_SPACE = re.compile(r"\\(?:left|right|q?quad)(?![A-Za-z])|\\[,;:! ()\[\]]|[{}~$*_]")
_DEGREES = re.compile(
    r"(?:\^? {0,3}(?:\\circ(?![A-Za-z])|\\degree(?![A-Za-z])|\u00b0)|(?<=[0-9 ])degrees?(?![A-Za-z]))"
    r"(?: {0,3}\x00? {0,3}(?i:(c)(?:elsius)?|(f)(?:ahrenheit)?)(?![A-Za-z]))?"
)
_MONEY_SIGNS = (("\\$", "dollar"), ("€", "euro"), ("¢", "cent"))
_WORD = r"(?:(?P<{0}power>square|sq|cubic|cu)\b\.?[ -]{{0,3}})?(?P<{0}>[A-Za-z]{{1,12}})(?![A-Za-z])"
_POWER = r"(?: {0,3}\^ {0,3}(?P<exponent>[23])(?![0-9])|(?P<digit>[23])(?![0-9.])| (?P<word>squared|cubed)\b)?"
_MEASURE = re.compile(
    r"(?:[0-9]\.?|\\pi|\x00)[ -]{0,9}\x00?[ -]{0,9}(?:(?:hundred|thousand|million|billion|trillion) {1,3})?"
    + _WORD.format("unit")
    + _POWER
    + r"(?: {0,3}\x00? {0,3}(?:/|per\b|an?\b) {0,3}\x00? {0,3}"
    + _WORD.format("rate")
    + r")?"
)
_AFTER_LETTER = re.compile(r"[ \x00]{0,9}(?:$|[.,;:/^=])")
"""What follows a unit of one letter, which may be an unknown, and `in`, which may be a preposition."""
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3, "2": 2, "3": 3}

Unit = tuple[str, str, int]
"""Kind, name and power; the kind of a denominator begins with a slash."""
_END = re.compile(
    r"(?<=[0-9])(?: {1,3}|(?:\\[,; ]|[ ~]){0,3}(?P<style>\\(?:text|textrm|mathrm|mbox) {0,3}\{[ ~]{0,3}))"
    + _WORD.format("unit")
    + r"(?:[ }]{0,3}\^ {0,3}\{? {0,3}[23] {0,3}\}?|[23])?(?(style)[ }]{0,3})$"
)
"""A unit at the end of an expression that ends in a number."""


def units_differ(key: str, answer: str) -> bool:
    """Return True if a key and an answer have units of one kind, and these are not the same units."""
    key_units = units_of(key)
    if not key_units:
        return False
    answer_units = units_of(answer)
    kinds = {unit[0] for unit in key_units} & {unit[0] for unit in answer_units}
    return any(unit[0] in kinds for unit in key_units ^ answer_units)


@lru_cache(maxsize=4096)  # keys and answers recur in a group
def units_of(text: str) -> frozenset[Unit]:
    """Return the units of the numbers in a text."""
    if not text.isascii():
        text = text.translate(_SIGNS)
    is_delimited = text.count("$") - text.count("\\$") != 1
    units: set[Unit] = set()
    for sign, name in (*_MONEY_SIGNS, *(() if is_delimited else (("$", "dollar"),))):
        if sign in text:
            units.add(("money", name, 1))
    plain = _SPACE.sub(" ", _STYLE.sub("\x00", text))
    plain = _DEGREES.sub(lambda match: " celsius " if match[1] else " fahrenheit " if match[2] else " degrees ", plain)
    for match in _MEASURE.finditer(plain):
        unit = _unit(match, "unit", plain)
        if unit is None:
            continue
        exponent = match["unitpower"] or match["exponent"] or match["digit"] or match["word"]
        units.add((*unit, _POWERS[exponent] if exponent else 1))
        rate = _unit(match, "rate", plain) if match["rate"] else None
        if rate is not None:
            units.add((f"/{rate[0]}", rate[1], _POWERS.get(match["ratepower"] or "", 1)))
    return frozenset(units)


def _unit(match: re.Match[str], group: str, text: str) -> tuple[str, str] | None:
    """Return the kind and the name of a unit that a match holds; None: it is no unit."""
    name = match[group]
    unit = _UNITS.get(name.lower() if len(name) > 1 or name == "L" else name)
    may_be_other = len(name) == 1 or name == "in"
    return None if unit is None or (may_be_other and not _AFTER_LETTER.match(text, match.end(group))) else unit


@lru_cache(maxsize=4096)
def without_unit(text: str) -> str:
    """Return an expression without the unit after the number at its end; one letter stays, as it may be an unknown."""
    if text[-1:].isdigit() and not text[-2:-1].isalpha() and "^" not in text[-6:]:
        return text
    match = _END.search(text)
    if match is None or len(match["unit"]) == 1 or match["unit"].lower() not in _UNITS:
        return text
    return text[: match.start()]
