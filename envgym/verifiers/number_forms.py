"""LaTeX, Markdown and typographic forms of numbers, written as plain text."""

import re
import unicodedata

_CHARACTERS = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2005\u2006\u2007\u2009\u200a\u202f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    **dict.fromkeys("\u2044\u2215", "/"),
    **dict.fromkeys("\u22c5\u2219\u2022", "·"),
    "\u2217": "*", "\u2019": "'", "\uff05": "%", "\uff0b": "+", "\u223c": "≈",
}  # fmt: skip
_TABLE = str.maketrans(_CHARACTERS)
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]{1,20}")
_VULGAR = re.compile(" ?[¼½¾⅐-⅞]")
_UNITS = (
    r"(?:[kcd]m|mm|in|ft|yd|mi|hr|min|sec|units?|inch(?:es)?|feet|foot|yards?|miles?|(?:centi|kilo|milli)?met(?:er|re)s?"
    r"|seconds?|hours?)"
)
_POWER = r" ?(?:\^ ?(?:\{ ?-?[1-4] ?\}|-?[1-4](?![0-9]))|⁻?[¹²³⁴])"
_UNIT_POWER = re.compile(
    rf"(?<![A-Za-z\\])({_UNITS}|(?<![0-9])[msh]){_POWER}|(?<=[0-9])([ms])⁻?[¹²³⁴]|\\(?:text|textrm|mathrm|rm) ?"
    rf"\{{([^{{}}]{{0,40}})\}}{_POWER}"
)
"""The power of a unit, as in 25 cm^2: a unit that follows its number at once, such as 5m^2, may be an unknown."""
_STYLED = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|normal)|mbox|boxed|fbox|boldsymbol|emph) ?\{([^{}]*)\}"
)
_WHOLE = r" {0,3}(?:\{ {0,3}([-+]?) {0,3}([0-9]{1,400}) {0,3}\}|([0-9]))"
_FRACTION = re.compile(rf"([-+]?) {{0,3}}\\[cdt]?frac{_WHOLE}{_WHOLE}")
_TIMES_TEN = re.compile(
    r"(?<=[0-9]) {0,3}(?:\u00d7|x|\*|·) {0,3}10 {0,3}(?:\^|\*\*) {0,3}"
    r"(?:\{ {0,3}([-+]?[0-9]{1,9}) {0,3}\}|\(?([-+]?[0-9]{1,9})\)?)"
)
_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9_-]{0,20}(?: [^<>]{0,80})?/?>")
_EMPHASIS = re.compile(r"(?<![A-Za-z0-9_])_{1,2}(?=[-+$]?[0-9.])|(?<=[0-9%.])_{1,2}(?![A-Za-z0-9_{])")
_SUBSCRIPT = re.compile(r"(?<=[A-Za-z])_(?:\{[0-9A-Za-z,]{1,8}\}|[0-9](?![0-9]))")
_LATEX = re.compile(
    r"\\(?:[,;:!$% ()\[\]]|(?:left|right|displaystyle|textstyle|cdot|times|div|pm|mp|leqslant|leq|le|geqslant|geq"
    r"|ge|lt|gt|neq|ne|approx|simeq|sim|infty|pi|theta|degree|circ|q?quad|sqrt|lvert|rvert|ldots|dots)(?![A-Za-z]))"
    r"|\{,\}|(?<=[0-9])~"
)
_PLAIN = {
    "\\,": "", "\\!": "", "{,}": ",", "\\$": "$", "\\%": "%", "\\cdot": "·", "\\times": "\u00d7", "\\div": "÷",
    "\\pm": "±", "\\mp": "∓", "\\le": "≤", "\\leq": "≤", "\\leqslant": "≤", "\\ge": "≥", "\\geq": "≥",
    "\\geqslant": "≥",
    "\\lt": "<", "\\gt": ">", "\\ne": "≠", "\\neq": "≠", "\\approx": "≈", "\\simeq": "≈", "\\sim": "≈", "\\infty": "∞",
    "\\pi": "π", "\\theta": "θ", "\\degree": "°", "\\circ": "°", "\\sqrt": "√", "\\left": "", "\\right": "",
    "\\lvert": "|", "\\rvert": "|", "\\ldots": "...", "\\dots": "...",
}  # fmt: skip
"""Of what LaTeX is written with; all else that `_LATEX` matches is a space."""
_DEGREES = re.compile(r"\^ ?(?:\{ ?° ?\}|°)")


def plain_forms(text: str) -> str:
    """Write LaTeX and typographic forms of numbers, operators and relations as plain ones."""
    if not text.isascii():
        text = _UNIT_POWER.sub(_without_power, text.translate(_TABLE))
        text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_POWERS)}}}", text)
        text = _VULGAR.sub(
            lambda match: " " + unicodedata.normalize("NFKC", match[0].strip()).replace("\u2044", "/"), text
        )
    if "\\" in text or "{" in text or "~" in text:
        text = _plain_latex(text)
    if "^" in text or "**" in text:
        text = _DEGREES.sub("°", _UNIT_POWER.sub(_without_power, text))
        text = _TIMES_TEN.sub(lambda match: f"e{match[1] or match[2]}", text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "_" in text:
        text = _EMPHASIS.sub("", _SUBSCRIPT.sub("", text))
    return text


def _plain_latex(text: str) -> str:
    if "frac" in text:
        text = _FRACTION.sub(_fraction, text)
        if "\\" not in text and "{" not in text:
            return text
    if "^" in text:
        text = _UNIT_POWER.sub(_without_power, text)
    text = _LATEX.sub(lambda match: _PLAIN.get(match[0], " "), text)
    return _STYLED.sub(r"\1", text) if "\\" in text else text


def _without_power(match: re.Match[str]) -> str:
    return f" {match[3]}" if match[3] is not None else match[1] or match[2]


def _fraction(match: re.Match[str]) -> str:
    before, top_sign, top, top_digit, bottom_sign, bottom, bottom_digit = match.groups()
    is_negative = (before, top_sign, bottom_sign).count("-") % 2 == 1
    return f" {'-' if is_negative else '+' if before else ''}{top or top_digit}/{bottom or bottom_digit}"
