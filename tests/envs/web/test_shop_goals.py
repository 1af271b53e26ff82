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
    wish = replace(WISH, attributes=(), options={})
    assert match_item(wish, LAMP, product(), {"finish": "white"}).reward == 1.0
    assert match_item(replace(wish, limit=100), LAMP, product(), {"finish": "white"}).reward == 0.0


def piece_for(wish: GoalItem) -> CartItem:
    found = target(SHOP, wish)
    return CartItem(product=found.id, chosen=tuple(cheapest(found, wish.options).items()))


def wish_for(place: int) -> GoalItem:
    """A wish that product number `place` meets."""
    found = list(SHOP.products.values())[place]
    name, option = next(iter(found.options.items()))
    options = {name: next(iter(option.prices))}
    limit = found.price(cheapest(found, options))
    return GoalItem(type=found.kind.name, attributes=found.features[:2], options=options, limit=limit)


def worth(wishes: list[GoalItem], cart: list[CartItem], *, strict: bool = False) -> float:
    return order_reward(SHOP, wishes, cart, all_or_nothing=strict).value


def test_whole_orders_by_hand() -> None:
    wishes = [wish_for(0), wish_for(700)]  # a dog coat and a rain jacket, say: departments differ
    assert {SHOP.by_type[wish.type][0].kind.department for wish in wishes} == {"Clothing", "Pets"}
    right = [piece_for(wish) for wish in wishes]
    assert worth(wishes, right) == worth(wishes, right[::-1]) == worth(wishes, right, strict=True) == 1.0
    assert worth(wishes, right[:1]) == 0.5  # (1 + 0) / 2
    assert worth(wishes, [right[0]] * 2) == 0.5  # the second coat is no jacket
    assert worth(wishes, [*right, right[0]]) == pytest.approx(2 / 3)  # (1 + 1) / 3
    assert worth(wishes[:1], right) == 0.5  # 1 / 2
    assert worth(wishes, [*right, right[0]], strict=True) == worth(wishes[:1], right, strict=True) == 0.0


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1499), min_size=1, max_size=4), st.integers(0, 1499))
def test_several_things_never_beat_one_of_them_at_random(places: list[int], wanted: int) -> None:
    wish = wish_for(wanted)
    cart = [piece_for(wish_for(place)) for place in places]
    alone = [worth([wish], [piece]) for piece in cart]
    assert worth([wish], cart) == pytest.approx(max(alone) / len(cart))
    assert worth([wish], cart) <= sum(alone) / len(alone) + 1e-12


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1499), min_size=1, max_size=3, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_pieces_and_wishes_does_not_matter(places: list[int], random: Any) -> None:  # hypothesis's Random
    wishes = [wish_for(place) for place in places]
    cart = [piece_for(wish) for wish in wishes]
    before = worth(wishes, cart)
    random.shuffle(cart)
    random.shuffle(wishes)
    assert worth(wishes, cart) == pytest.approx(before)
    assert 0.0 <= before <= 1.0 + 1e-12


def test_a_wish_that_nothing_meets_is_refused() -> None:
    with pytest.raises(InvalidInput, match="wish must be met by a product, got unicorn saddle"):
        target(SHOP, replace(WISH, type="unicorn saddle"))
