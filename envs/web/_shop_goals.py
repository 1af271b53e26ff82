"""The goal of a task, and what an order is worth. Knows products and the cart; nothing of pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envgym.authoring.sources import MAX_DRAWS, check_index
from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.tasks import Split, Task, split_of
from envgym.core.turns import Scored
from envgym.envs.web._shop_catalogue import Catalogue, Product, ProductKind, catalogue
from envgym.envs.web._shop_store import CartItem, dollars
from envgym.errors import InvalidInput
from envgym.seeds import generator

GRID_CENTS, GRID_STEPS = 500, 4
"""A price limit is one of the next four multiples of five dollars above the price."""
SAME_CATEGORY, SAME_DEPARTMENT = 0.5, 0.1
"""r_type of another type from the same category, and from the same department."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalItem:
    type: str
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    limit: int
    """Most that it may cost, in cents."""

    @property
    def payload(self) -> dict[str, JsonValue]:
        return {**self.content, "limit": self.limit}

    @property
    def content(self) -> dict[str, JsonValue]:
        """What decides the split: all but the limit."""
        return {"type": self.type, "attributes": [*sorted(self.attributes)], "options": dict(self.options)}

    def met_by(self, product: Product) -> bool:
        """Return whether this product of the type, with the options asked for, meets the goal."""
        options = product.options
        return (
            product.attributes.issuperset(self.attributes)
            and all(name in options and value in options[name].prices for name, value in self.options.items())
            and product.price(cheapest(product, self.options)) <= self.limit
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalMatch:
    """How far an item of the cart meets a goal: each part in [0, 1]."""

    type: float
    attributes: float
    options: float
    price: float
    reward: float


def match_item(goal: GoalItem, kind: ProductKind, product: Product, choices: Mapping[str, str]) -> GoalMatch:
    """Compare a product, with its options as chosen, to a goal of the type `kind`.

    r = r_type (|A ∩ A*| + |O ∩ O*| + [price <= limit]) / (|A*| + |O*| + 1), with A* and O* the attributes and options
    asked for and r_type in {1, 0.5, 0.1, 0}.
    Source: WebShop (2207.01206), section 3. It tells r_type from the nouns of the titles, the search words and the
    categories, and compares attributes and options loosely; here the catalogue knows: r_type is 1 for the same type,
    0.5 within the category, 0.1 within the department, and attributes and options must be equal.
    """
    bought = product.kind
    if bought == kind:
        r_type = 1.0
    elif bought.department != kind.department:
        r_type = 0.0
    else:
        r_type = SAME_CATEGORY if bought.category == kind.category else SAME_DEPARTMENT
    attributes = len(product.attributes.intersection(goal.attributes))
    options = sum(choices.get(name) == value for name, value in goal.options.items())
    is_cheap = product.price(choices) <= goal.limit
    requested = len(goal.attributes) + len(goal.options) + 1
    return GoalMatch(
        type=r_type,
        attributes=attributes / len(goal.attributes) if goal.attributes else 1.0,
        options=options / len(goal.options) if goal.options else 1.0,
        price=float(is_cheap),
        reward=r_type * (attributes + options + is_cheap) / requested,
    )


def order_reward(
    shop: Catalogue, goals: Sequence[GoalItem], cart: Sequence[CartItem], *, all_or_nothing: bool
) -> Scored:
    """Return the score of an order: the best assignment of cart items to goals, over the larger of both numbers.

    R = max over one-to-one assignments of sum r(item, goal) / max(items, goals). For one goal and one item that is
    WebShop's r; buying k things in the hope that one is right earns at most a k-th of it.
    """
    kinds = [shop.by_type[goal.type][0].kind for goal in goals]
    table = [
        [
            match_item(goal, kind, shop.products[cart_item.product], dict(cart_item.choices))
            for goal, kind in zip(goals, kinds, strict=True)
        ]
        for cart_item in cart
    ]
    best = _best_assignment(table) if table else []
    most = max(len(cart), len(goals))
    parts = ("type", "attributes", "options", "price")
    components = {part: sum(float(getattr(one, part)) for one in best) / most for part in parts}
    value = sum(one.reward for one in best) / most
    is_right = all(one.reward == 1.0 for one in best) and len(cart) == len(goals)
    return Scored(
        value=float(is_right) if all_or_nothing else value, components={**components, "right": float(is_right)}
    )


def _best_assignment(table: Sequence[Sequence[GoalMatch]]) -> list[GoalMatch]:
    """Return the entries of the one-to-one assignment of rows to columns that is worth most."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # heavy; SciPy has no stubs

    rows, columns = linear_sum_assignment([[one.reward for one in row] for row in table], maximize=True)
    return [table[row][column] for row, column in zip(rows, columns, strict=True)]


def cheapest(product: Product, requested: Mapping[str, str]) -> dict[str, str]:
    """Return a choice for every option: what is asked for, else the value that costs least."""
    return {
        name: requested.get(name) or min(option.prices, key=option.prices.__getitem__)
        for name, option in product.options.items()
    }


def target(shop: Catalogue, goal: GoalItem) -> Product:
    """Return the cheapest product that meets the goal. Raises: InvalidInput: none does."""
    meeting = [product for product in shop.by_type.get(goal.type, ()) if goal.met_by(product)]
    got, do = goal.type, "take the task from an env with the same store and products"
    InvalidInput.unless(meeting, "goal", "be met by a product", got, where="web/shop-v0", do=do)
    return min(meeting, key=lambda product: (product.price(cheapest(product, goal.options)), product.id))


def read_goals(payload: JsonObject) -> tuple[GoalItem, ...]:
    """Read the goals of a task. Raises: KeyError, TypeError: the task is of another env."""
    entries: object = payload["wishes"]
    if not isinstance(entries, list):
        raise TypeError(f"wishes are a list, not {type(entries).__name__}")
    return tuple(
        GoalItem(type=one["type"], attributes=tuple(one["attributes"]), options=one["options"], limit=one["limit"])
        for one in entries
    )


@dataclass(frozen=True, kw_only=True)
class ShopTasks:
    """Tasks without end: each is one to three goals that some product meets.

    A goal belongs to one side of the split by its type, attributes and options, whatever its price limit and whatever
    is asked for beside it; so no goal of a test task is part of any train task.
    """

    store: int
    products: int
    attributes: int
    options: int
    items: int

    def size(self, split: Split) -> None:
        return

    def task(self, split: Split, index: int) -> Task:
        """Draw goals of this side, for things of different types. Raises: InvalidInput: a negative index."""
        check_index(index, None, f"{split} of web/shop")
        settings = (self.store, self.products, self.attributes, self.options, self.items)
        rng = generator("web/shop", *settings, split.value, index)
        shop = catalogue(self.store, self.products)
        goals: dict[str, GoalItem] = {}
        for _ in range(MAX_DRAWS):
            goal = self._draw(rng, shop)
            if split_of(goal.content) is split:
                goals.setdefault(goal.type, goal)
            if len(goals) == self.items:
                break
        assert len(goals) == self.items, "both sides hold types enough"
        items = [goals[name] for name in sorted(goals)]
        return Task(
            id=f"{split}/{index}",
            prompt=describe_goals(rng, items),
            payload={"catalogue": shop.fingerprint, "wishes": [goal.payload for goal in items]},
            split=split,
            metadata={"store": self.store, "items": self.items},
        )

    def _draw(self, rng: np.random.Generator, shop: Catalogue) -> GoalItem:
        product = list(shop.products.values())[int(rng.integers(len(shop.products)))]
        names = _some(rng, list(product.options), self.options)
        options = {name: _some(rng, list(product.options[name].prices), 1)[0] for name in sorted(names)}
        price = product.price(cheapest(product, options))
        limit = GRID_CENTS * (price // GRID_CENTS + 1 + int(rng.integers(GRID_STEPS)))
        attributes = tuple(_some(rng, list(product.features), self.attributes))
        return GoalItem(type=product.kind.name, attributes=attributes, options=options, limit=limit)


def _some(rng: np.random.Generator, words: Sequence[str], count: int) -> list[str]:
    return [words[place] for place in rng.permutation(len(words))[:count].tolist()]


_OPENINGS = ("Please buy", "I need", "I am looking for", "Find and order")
_LIMITS = ("for at most {}", "priced at {} or less", "costing no more than {}")


def describe_goals(rng: np.random.Generator, goals: Sequence[GoalItem]) -> str:
    """Write the goals in words; the wording is drawn."""
    opening, limit = (words[int(rng.integers(len(words)))] for words in (_OPENINGS, _LIMITS))
    if len(goals) == 1:
        return f"{opening} {_describe_item(goals[0], limit)}."
    return "\n".join([f"{opening} one of each:", *(f"- {_describe_item(goal, limit)}" for goal in goals)])


def _describe_item(goal: GoalItem, limit: str) -> str:
    article = "" if goal.type[-1] == "s" != goal.type[-2] else "an " if goal.type[0] in "aeiou" else "a "
    attributes = f" ({'; '.join(goal.attributes)})" if goal.attributes else ""
    options = " and ".join(f"{name}: {value}" for name, value in goal.options.items())
    return (
        f"{article}{goal.type}{attributes}{f' with {options}' if options else ''}, {limit.format(dollars(goal.limit))}"
    )
