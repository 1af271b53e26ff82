"""The quantities of the factbook, and how their lines are read: a text in any other form is no fact."""

import re
from collections.abc import Mapping
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from envgym.envs.data_files import read_toml

_SCALES = {None: 1, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NUMBER = (
    r"(?P<minus>-?)\$?(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?: (?P<scale>million|billion|trillion))?"
)
_OF_DEGREE = re.compile(r"(?:age|density|elevation|expectancy|index|level|prevalence|rate|ratio|share)$")
_YEAR_AT_END = re.compile(r" (?P<year>(?:19|20)\d\d)$")


class FieldValue(NamedTuple):
    """A number and its year."""

    value: Decimal
    """In the unit that questions ask for."""
    year: int | None


class FactbookField(BaseModel):
    """One quantity; the head of the table says what is what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    page: str
    line: str
    form: str
    asks: str
    unit: str = ""
    scale: float = 1.0
    undated: bool = False
    may_lack: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What the whole text of the line must be."""
        year = "" if self.undated else r" \((?P<year>(?:19|20)\d\d)(?: est\.)?\)"
        return re.compile(_NUMBER + self.form + year)

    @property
    def is_size(self) -> bool:
        """Whether more of it is greater, rather than higher."""
        head = re.split(r" (?:of|in|from|per|to|with|below|at|among) | \(", self.noun)[0]
        return _OF_DEGREE.search(head) is None

    @property
    def noun(self) -> str:
        """The quantity without a country: `the median age`."""
        return re.sub(r" (?:of|in|by) \{\}", "", self.asks)

    @property
    def root(self) -> str:
        """The factbook's field, with which the labels of all its parts begin."""
        return self.line.partition(":")[0].removesuffix(" {year}")

    def read(self, label: str, text: str) -> FieldValue | None:
        """Return the value on a line of this field, or None if its text has another form than the table's.

        That is so for ranges, notes after the number, `NA`, and where label and text name different years.
        """
        match = self.pattern.fullmatch(text)
        if match is None:
            return None
        scale = _SCALES[match["scale"]]
        if self.scale > 1 and scale == 1 and "," not in match["number"] and match["number"] != "0":
            return None  # a scale that was forgotten, as in "67 cubic meters" of a country's water
        year = None if self.undated else int(match["year"])
        labelled = _YEAR_AT_END.search(label)
        if labelled is not None and int(labelled["year"]) != year:
            return None
        value = Decimal(match["minus"] + match["number"].replace(",", "")) * scale / Decimal(self.scale)
        return FieldValue(value, year)


@lru_cache(maxsize=1)
def load_fields() -> Mapping[str, FactbookField]:
    """Return the table, by name."""
    rows = read_toml("world_factbook/fields.toml")
    return {name: FactbookField(name=name, **row) for name, row in rows.items()}


@lru_cache(maxsize=1)
def _by_line() -> Mapping[tuple[str, str], FactbookField]:
    return {(field.page, field.line.lower()): field for field in load_fields().values()}


def field_of(page: str, label: str) -> FactbookField | None:
    """Return the field whose line has this label on this page, or None."""
    return _by_line().get((page, _YEAR_AT_END.sub(" {year}", label.lower())))
