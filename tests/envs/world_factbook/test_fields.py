"""A line is a fact in exactly one form; everything else is refused."""

from decimal import Decimal

import pytest

from envgym.envs.world_factbook.fields import FieldValue, field_of, load_fields


@pytest.mark.parametrize(
    "field, label, text, value, year",
    [
        ("area", "Area: total", "580,367 sq km", "580367", None),
        ("population", "Population: total", "55,751,717 (2025 est.)", "55751717", 2025),
        ("net_migration", "Net migration rate", "-1.1 migrant(s)/1,000 population (2025 est.)", "-1.1", 2025),
        ("gdp_ppp", "Real GDP (purchasing power parity) 2024", "$1.39 trillion (2024 est.)", "1390", 2024),
        ("gdp_ppp", "Real GDP (purchasing power parity) 2023", "$57.055 million (2023 est.)", "0.057055", 2023),
        ("gdp_per_head", "Real GDP per capita 2024", "$5,800 (2024 est.)", "5800", 2024),
        ("labor_force", "Labor force", "270,300 (2024 est.)", "0.2703", 2024),
        ("unemployment", "Unemployment rate 2022", "0% (2022 est.)", "0", 2022),
    ],
)
def test_the_number_is_read_in_the_unit_that_is_asked_for(
    field: str, label: str, text: str, value: str, year: int | None
) -> None:
    assert load_fields()[field].read(label, text) == FieldValue(Decimal(value), year)


@pytest.mark.parametrize(
    "field, label, text",
    [
        ("coastline", "Coastline", "0 km (landlocked)"),
        ("area", "Area: total", "443 sq km (Antigua 280 sq km; Barbuda 161 sq km)"),
        ("area", "Area: total", "580,36 sq km"),
        ("irrigated", "Irrigated land", "NA"),
        ("irrigated", "Irrigated land", "1,030 sq km"),
        ("median_age", "Median age: total", "21.5-22 years (2025 est.)"),
        ("median_age", "Median age: total", "about 21.5 years (2025 est.)"),
        ("median_age", "Median age: total", "21.5 years (2017/18 est.)"),
        ("railways", "Railways: total", "16,390 km (2020) 6,167 km electrified"),
        ("unemployment", "Unemployment rate 2023", "5.5% (2022 est.)"),
        ("co2", "Carbon dioxide emissions: total emissions", "67 metric tonnes of CO2 (2023 est.)"),
    ],
)
def test_a_doubtful_text_is_no_fact(field: str, label: str, text: str) -> None:
    assert load_fields()[field].read(label, text) is None


def test_a_field_is_known_by_its_page_and_its_label_with_any_year() -> None:
    found = field_of("Economy", "Unemployment rate 2019")
    assert found is not None
    assert (found.name, found.noun, found.is_size) == ("unemployment", "the unemployment rate", False)
    assert field_of("Geography", "Unemployment rate 2019") is field_of("Economy", "Unemployment rate") is None


def test_every_field_can_be_asked_with_and_without_a_country() -> None:
    for field in load_fields().values():
        assert field.asks.count("{}") == 1
        assert field.noun.startswith("the ")
        assert not {"{", "  "} & {field.noun[index : index + 1] for index in range(len(field.noun))}
        assert field.noun.rsplit(" ", 1)[-1] not in ("of", "in", "by")
        assert (field.scale > 1) == field.unit.startswith(("millions", "billions")), field.name
