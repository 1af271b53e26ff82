"""What the store sells: products drawn from a table of kinds, brands, attributes, options and prices.

Owns the products alone; knows nothing of pages, carts or goals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from envgym.core.json_types import JsonValue, content_hash
from envgym.envs.data_files import read_toml
from envgym.envs.web._shop_search import SearchIndex
from envgym.seeds import generator

FIRST_NUMBER, LAST_NUMBER = 1000, 9999
"""Products are P1000 to P9999."""
MIN_ATTRIBUTES, MAX_ATTRIBUTES = 4, 6
MIN_VALUES, MAX_VALUES = 3, 5
"""Values of an option that one product is sold in."""
RISE = 0.08
"""What each larger size costs more, as a share of the price."""
MAX_STORES = 32
"""Stores that are kept; each takes some 10 MB."""
_TITLE_WEIGHT = 2
"""Times that the words of a title count in the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductOption:
    """Something to choose, such as the color."""

    name: str
    prices: Mapping[str, int]
    """Value -> what it costs more, in cents; in the order they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductKind:
    """A type of product, with its department and category."""

    department: str
    category: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    id: str
    kind: ProductKind
    title: str
    about: str
    attributes: frozenset[str]
    """All that is true of it, its material among them, as its features say it."""
    features: tuple[str, ...]
    """The attributes in the order they are shown."""
    options: Mapping[str, ProductOption]
    cents: int
    """Price without any surcharge."""
    rating: str

    def price(self, choices: Mapping[str, str]) -> int:
        return self.cents + sum(self.options[name].prices[value] for name, value in choices.items())


@dataclass(frozen=True)
class Catalogue:
    store: int
    products: Mapping[str, Product]

    @cached_property
    def index(self) -> SearchIndex:
        return SearchIndex({product.id: _words(product) for product in self.products.values()})

    @cached_property
    def by_type(self) -> Mapping[str, tuple[Product, ...]]:
        by_type: dict[str, tuple[Product, ...]] = {}
        for product in self.products.values():
            by_type[product.kind.name] = (*by_type.get(product.kind.name, ()), product)
        return by_type

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that is sold: tasks of another catalogue are told by it."""
        rows: list[JsonValue] = [
            [
                *(product.id, product.title, product.cents, *product.features),
                *(dict(option.prices) for option in product.options.values()),
            ]
            for product in self.products.values()
        ]
        return content_hash(rows)[:12]


@lru_cache(maxsize=MAX_STORES)
def catalogue(store: int, size: int) -> Catalogue:
    """Draw the `size` products of a store; another number is another store. Nobody changes them, so all envs share."""
    rng = generator("web/shop", "catalogue", store)
    table = _table()
    categories = [
        (category, name, prices) for category in table["category"] for name, prices in category["types"].items()
    ]
    numbers = rng.permutation(np.arange(FIRST_NUMBER, LAST_NUMBER + 1))[:size].tolist()
    goods = (_product(rng, f"P{number}", *categories[at % len(categories)], table) for at, number in enumerate(numbers))
    return Catalogue(store, {product.id: product for product in sorted(goods, key=lambda product: product.id)})


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:  # Any: decoded TOML, our own file
    return read_toml("web/data/shop.toml")


def _product(
    rng: np.random.Generator,
    id: str,
    category: Mapping[str, Any],
    name: str,
    prices: Sequence[int],
    table: Mapping[str, Any],
) -> Product:
    kind = ProductKind(department=category["department"], category=category["name"], name=name)
    brand, line, material = (_one(rng, words) for words in (table["brands"], table["series"], category["materials"]))
    attributes = _some(rng, category["attributes"], MIN_ATTRIBUTES, MAX_ATTRIBUTES)
    low, high = prices
    cents = round(low * (high / low) ** rng.random()) * 100 - int(rng.integers(2)) * 50 - 1
    options = {key: _option(rng, key, table["sets"][of], cents) for key, of in category["options"].items()}
    first, second, *_ = attributes
    return Product(
        id=id,
        kind=kind,
        title=f"{brand} {line} {_titled(f'{material} {name}')}, {_titled(first)}, {_titled(second)}",
        about=f"The {line} by {brand}: {material}, made for everyday use.",
        attributes=frozenset((material, *attributes)),
        features=(material, *attributes),
        options=options,
        cents=cents,
        rating=f"{rng.integers(31, 50) / 10:.1f} of 5 stars, {rng.integers(3, 4000)} ratings",
    )


def _option(rng: np.random.Generator, name: str, values: Mapping[str, Any], cents: int) -> ProductOption:
    subset = set(_some(rng, values["values"], MIN_VALUES, MAX_VALUES))
    step = round(cents * RISE / 50) * 50 if values.get("rising") else 0
    ordered = [value for value in values["values"] if value in subset]
    return ProductOption(name=name, prices={value: rank * step for rank, value in enumerate(ordered)})


def _one(rng: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]


def _some(rng: np.random.Generator, words: Sequence[str], low: int, high: int) -> tuple[str, ...]:
    order = rng.permutation(len(words))[: int(rng.integers(low, high + 1))]
    return tuple(words[place] for place in order.tolist())


def _titled(words: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in words.split())


def _words(product: Product) -> str:
    kind = product.kind
    title = f"{product.title} " * _TITLE_WEIGHT
    return f"{title} {kind.department} {kind.category} {kind.name} {product.about} {' '.join(product.features)}"
