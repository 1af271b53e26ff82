"""The World Factbook as a database: countries with what is known of them in numbers, borders, trade partners."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache

from envgym.envs.code._sql.results import Row, Value
from envgym.envs.code._sql.schema import ColumnKind, ColumnSchema, DatabaseSchema, TableSchema, write_database
from envgym.envs.world_factbook.countries import Country, read_countries
from envgym.envs.world_factbook.fields import load_fields
from envgym.envs.world_factbook.pages import pages_of, read_entries

FIELDS = (
    "area",
    "coastline",
    "forest",
    "population",
    "median_age",
    "birth_rate",
    "life_expectancy",
    "urban",
    "literacy",
    "physicians",
    "gdp_ppp",
    "gdp_per_head",
    "inflation",
    "unemployment",
    "public_debt",
    "exports",
    "imports",
    "co2",
)
_WHOLE = ("area", "population", "gdp_per_head")
_REGIONS = re.compile(r"[A-Z][a-z]+(?: [A-Za-z]+)*")
_BORDER = re.compile(r"(?P<name>[^\d;()]+?) (?P<number>\d[\d,]*(?:\.\d+)?) km")
_PARTNER = re.compile(r"(?P<name>[^\d,()]+?) (?P<number>\d+(?:\.\d+)?)%")
_OTHER_REGION = "several"


@cache
def factbook_schema() -> DatabaseSchema:
    """Describe the tables; what is not in the factbook is NULL."""
    fields = load_fields()
    columns = [
        ColumnSchema(
            name=name,
            noun=fields[name].noun.removeprefix("the "),
            kind=ColumnKind.NUMBER,
            step=1 if name in _WHOLE else 0.1,
            unknown=0.0 if name == "population" else 0.1,
            unit=fields[name].unit,
        )
        for name in FIELDS
    ]
    country = TableSchema(
        name="country",
        plural="countries",
        columns=(
            ColumnSchema(name="name", noun="name", kind=ColumnKind.NAME),
            ColumnSchema(name="region", noun="region", kind=ColumnKind.CATEGORY),
            *columns,
        ),
    )
    return DatabaseSchema(
        name="factbook",
        tables=(
            country,
            TableSchema(
                name="border",
                plural="borders",
                parent="country",
                columns=(
                    ColumnSchema(name="neighbor", noun="neighbor", kind=ColumnKind.CATEGORY),
                    ColumnSchema(name="length", noun="length", kind=ColumnKind.NUMBER, step=0.1, unit="km"),
                ),
            ),
            TableSchema(
                name="export_partner",
                plural="export partners",
                parent="country",
                columns=(
                    ColumnSchema(name="partner", noun="partner name", kind=ColumnKind.CATEGORY),
                    ColumnSchema(
                        name="share", noun="share", kind=ColumnKind.NUMBER, step=0.1, unit="percent of the exports"
                    ),
                ),
            ),
        ),
    )


def factbook_file() -> bytes:
    """Read the wheel and return its SQLite file. Raises: InvalidInput: the wheel is not installed."""
    entries = read_entries()
    lines = {entry.name: entry.sections for entry in entries}
    countries = sorted(
        read_countries(page for entry in entries for page in pages_of(entry)), key=lambda item: item.name
    )
    rows: dict[str, list[Row]] = {"country": [], "border": [], "export_partner": []}
    for number, country in enumerate(countries, start=1):
        sections = lines[country.name]
        rows["country"].append(
            (number, country.name, _region(sections), *(_latest_value(country, name) for name in FIELDS))
        )
        for table, section, label, between, form in (
            ("border", "Geography", "Land boundaries: border countries", "; ", _BORDER),
            ("export_partner", "Economy", "Exports - partners", ", ", _PARTNER),
        ):
            for name, value in _read_items(sections.get(section, {}).get(label, ""), between, form):
                rows[table].append((len(rows[table]) + 1, number, name, value))
    return write_database(factbook_schema(), rows)


def _region(sections: Mapping[str, Mapping[str, str]]) -> str:
    region = sections.get("Geography", {}).get("Map references", "")
    return region if _REGIONS.fullmatch(region) and "World" not in region else _OTHER_REGION


def _latest_value(country: Country, field: str) -> Value:
    dated_values = [(year or 0, fact.reading.value) for (name, year), fact in country.facts.items() if name == field]
    return _plain_number(max(dated_values)[1]) if dated_values else None


def _read_items(text: str, between: str, form: re.Pattern[str]) -> Iterator[tuple[str, Value]]:
    """Yield the names of a list with their numbers; what has another form is left out."""
    for item in text.split(between):
        match = form.match(item)
        if match is not None:
            yield match["name"].strip(), _plain_number(Decimal(match["number"].replace(",", "")))


def _plain_number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
