"""What an order in `web/shop-v0` is worth: WebShop's formula by hand, and laws of whole orders."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.envs.web._shop_catalogue import Product, ProductKind, ProductOption, catalogue
from envgym.envs.web._shop_goals import GoalItem, cheapest, match_item, order_reward, target
from envgym.envs.web._shop_store import CartItem
from envgym.errors import InvalidInput

SHOP = catalogue(0, 1500)
LAMP = ProductKind(department="Home", category="Lighting", name="desk lamp")
WISH = GoalItem(type="desk lamp", attributes=("dimmable", "oak"), options={"finish": "copper"}, limit=3000)


def product(**changes: Any) -> Product:  # any field of a product
    finish = ProductOption(name="finish", prices={"white": 0, "copper": 500})
    whole = Product(
        id="P1000",
        kind=LAMP,
        title="",
        about="",
        attributes=frozenset({"dimmable", "oak", "wireless"}),
        features=(),
        options={"finish": finish},
        cents=2500,
        rating="",
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(
    "changes, finish, expected",
    [
        # (attributes + option + price) / (2 + 1 + 1), times r_type
        ({}, "copper", 4 / 4),  # 2 + 1 + 1: costs 25 + 5 = 30, the limit itself
        ({}, "white", 3 / 4),  # 2 + 0 + 1
        ({"cents": 2501}, "copper", 3 / 4),  # 2 + 1 + 0: costs 30.01
        ({"cents": 2501}, "white", 3 / 4),  # 2 + 0 + 1: the other finish costs 5 less
        ({"attributes": frozenset({"oak"})}, "copper", 3 / 4),  # 1 + 1 + 1
        ({"attributes": frozenset()}, "white", 1 / 4),  # 0 + 0 + 1
        ({"kind": replace(LAMP, name="floor lamp")}, "copper", 0.5),
        ({"kind": replace(LAMP, name="pan", category="Cookware")}, "white", 0.1 * 3 / 4),
        ({"kind": replace(LAMP, department="Garden")}, "copper", 0.0),
    ],
)
def test_reward_by_hand(changes: dict[str, Any], finish: str, expected: float) -> None:
    assert match_item(WISH, LAMP, product(**changes), {"finish": finish}).reward == pytest.approx(expected)


def test_without_attributes_and_options_only_type_and_price_count() -> None:
    goal = replace(WISH, attributes=(), options={})
    assert match_item(goal, LAMP, product(), {"finish": "white"}).reward == 1.0
    assert match_item(replace(goal, limit=100), LAMP, product(), {"finish": "white"}).reward == 0.0


def cart_item_for(goal: GoalItem) -> CartItem:
    found = target(SHOP, goal)
    return CartItem(product=found.id, choices=tuple(cheapest(found, goal.options).items()))


def goal_for(place: int) -> GoalItem:
    """A goal that product number `place` meets."""
    found = list(SHOP.products.values())[place]
    name, option = next(iter(found.options.items()))
    options = {name: next(iter(option.prices))}
    limit = found.price(cheapest(found, options))
    return GoalItem(type=found.kind.name, attributes=found.features[:2], options=options, limit=limit)


def worth(goals: list[GoalItem], cart: list[CartItem], *, strict: bool = False) -> float:
    return order_reward(SHOP, goals, cart, all_or_nothing=strict).value


def test_whole_orders_by_hand() -> None:
    goals = [goal_for(0), goal_for(700)]  # a dog coat and a rain jacket, say: departments differ
    assert {SHOP.by_type[goal.type][0].kind.department for goal in goals} == {"Clothing", "Pets"}
    right = [cart_item_for(goal) for goal in goals]
    assert worth(goals, right) == worth(goals, right[::-1]) == worth(goals, right, strict=True) == 1.0
    assert worth(goals, right[:1]) == 0.5  # (1 + 0) / 2
    assert worth(goals, [right[0]] * 2) == 0.5  # the second coat is no jacket
    assert worth(goals, [*right, right[0]]) == pytest.approx(2 / 3)  # (1 + 1) / 3
    assert worth(goals[:1], right) == 0.5  # 1 / 2
    assert worth(goals, [*right, right[0]], strict=True) == worth(goals[:1], right, strict=True) == 0.0


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1499), min_size=1, max_size=4), st.integers(0, 1499))
def test_several_things_never_beat_one_of_them_at_random(places: list[int], wanted: int) -> None:
    goal = goal_for(wanted)
    cart = [cart_item_for(goal_for(place)) for place in places]
    alone = [worth([goal], [cart_item]) for cart_item in cart]
    assert worth([goal], cart) == pytest.approx(max(alone) / len(cart))
    assert worth([goal], cart) <= sum(alone) / len(alone) + 1e-12


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1499), min_size=1, max_size=3, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_items_and_goals_does_not_matter(places: list[int], random: Any) -> None:  # hypothesis's Random
    goals = [goal_for(place) for place in places]
    cart = [cart_item_for(goal) for goal in goals]
    before = worth(goals, cart)
    random.shuffle(cart)
    random.shuffle(goals)
    assert worth(goals, cart) == pytest.approx(before)
    assert 0.0 <= before <= 1.0 + 1e-12


def test_a_goal_that_nothing_meets_is_refused() -> None:
    with pytest.raises(InvalidInput, match="goal must be met by a product, got unicorn saddle"):
        target(SHOP, replace(WISH, type="unicorn saddle"))
