"""The store of `web/shop-v0`: its products, its search, its pages, its prices."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.envs.web._shop_catalogue import Product, ProductKind, ProductOption, catalogue
from envgym.envs.web._shop_pages import LineCell, PageAction, PageLine, ShopPage
from envgym.envs.web._shop_search import SCALE, SearchIndex, words_of
from envgym.envs.web._shop_store import (
    MAX_LINES,
    PER_PAGE,
    CartItem,
    OpenPage,
    ShopVisit,
    apply_action,
    current_page,
    search_products,
)

SHOP = catalogue(0, 1500)


def test_a_store_is_the_same_for_its_number_and_no_other() -> None:
    again = catalogue.__wrapped__(0, 1500)
    assert again.products == SHOP.products
    assert again.fingerprint == SHOP.fingerprint != catalogue(1, 1000).fingerprint


def test_every_product_is_whole() -> None:
    products = SHOP.products.values()
    assert len(products) == 1500
    assert len({product.title for product in products}) > 1490
    assert len({product.kind for product in products}) == len({product.kind.name for product in products}) == 75
    for product in products:
        assert product.attributes == set(product.features)
        assert 5 <= len(product.features) <= 7
        assert len(product.options) >= 2
        assert all(3 <= len(option.prices) <= 5 for option in product.options.values())
        assert product.cents > 0
        assert all(more >= 0 for option in product.options.values() for more in option.prices.values())


def test_ids_do_not_tell_the_type() -> None:
    types = [product.kind.name for product in SHOP.products.values()]
    repeats = sum(one == other for one, other in itertools.pairwise(types))
    assert repeats < 1500 / 75 * 3  # 20 are expected of a random order


def test_bm25_by_hand() -> None:
    # Two texts of 2 and 4 words, mean 3; "tea" in both, "cup" in one; k1 = 1.2, b = 0.75.
    # idf(cup) = ln(1 + 1.5 / 1.5) = ln 2, idf(tea) = ln(1 + 0.5 / 2.5) = ln 1.2.
    # Text b: |d| = 4, norm = 1.2 (0.25 + 0.75 * 4/3) = 1.5; cup once: ln 2 * 2.2 / 2.5; tea twice: ln 1.2 * 4.4 / 3.5.
    # Text a: |d| = 2, norm = 1.2 (0.25 + 0.5) = 0.9; tea once: ln 1.2 * 2.2 / 1.9.
    index = SearchIndex({"a": "green tea", "b": "tea cup and teas"})
    weights = {word: index._weights[row].tolist() for word, row in index._rows.items()}
    assert weights["cup"] == [0, round(math.log(2) * 2.2 / 2.5 * SCALE)]
    assert weights["tea"] == [round(math.log(1.2) * 2.2 / 1.9 * SCALE), round(math.log(1.2) * 4.4 / 3.5 * SCALE)]
    assert index.search("cup") == (("b",), 1)
    assert index.search("TEA green") == (("a", "b"), 2)
    assert index.search("coffee") == ((), 0)


@settings(max_examples=50)
@given(st.text(max_size=400))
def test_a_query_is_read_once_and_for_all(text: str) -> None:
    query = search_products(text)
    assert search_products(query) == query
    assert query.isascii()
    assert len(query) <= 300
    assert set(query.split()) <= set(words_of(text))


def test_a_title_finds_its_product_first() -> None:
    products = list(SHOP.products.values())[::50]
    assert all(SHOP.index.search(product.title).ids[0] == product.id for product in products)


def test_results_are_shown_ten_at_a_time() -> None:
    visit = apply_action(SHOP, ShopVisit(), PageAction("search", "cotton"))
    first, second = (
        current_page(SHOP, visit),
        current_page(SHOP, apply_action(SHOP, visit, PageAction("show_page", "2"))),
    )
    ids = [[cell.act.argument for line in page.lines for cell in line.cells if cell.act and cell.act.verb == "open"]
           for page in (first, second)]  # fmt: skip
    assert tuple(ids[0] + ids[1]) == SHOP.index.search("cotton").ids[: 2 * PER_PAGE]
    assert str(first.lines[-2]) == "Page: [1] | 2 | 3 | 4 | 5"
    assert str(second.lines[-2]) == "Page: 1 | [2] | 3 | 4 | 5"


def one_product() -> Product:
    color = ProductOption(name="color", prices={"sand": 0, "teal": 0})
    size = ProductOption(name="size", prices={"small": 0, "large": 250})
    return Product(
        id="P1000",
        kind=ProductKind(department="Home", category="Lighting", name="desk lamp"),
        title='Salt & Pine 10" Lamp',
        about="A lamp.",
        attributes=frozenset({"oak"}),
        features=("oak",),
        options={"color": color, "size": size},
        cents=1999,
        rating="4.0 of 5 stars, 7 ratings",
    )


def test_an_order_from_the_first_page_to_the_last() -> None:
    shop = replace(SHOP, products={"P1000": one_product()})
    visit = ShopVisit(open_page=OpenPage.PRODUCT, query="lamp", product="P1000")
    assert current_page(shop, visit).text.splitlines()[5:] == [
        "color: sand | teal",
        "size: small | large (+$2.50)",
        "To add it to the cart, choose color and size.",
        "Back to the results | Cart (0)",
    ]
    # Chosen in the other order and once over again; $19.99 + $2.50 = $22.49.
    for act in (
        PageAction("choose", "size: large"),
        PageAction("choose", "color: sand"),
        PageAction("choose", "color: teal"),
    ):
        visit = apply_action(shop, visit, act)
    text = current_page(shop, visit).text
    assert "color: sand | [teal]\nsize: small | [large (+$2.50)]\nAdd to cart" in text
    assert "Price: $22.49." in text
    visit = apply_action(shop, visit, PageAction("add_to_cart"))
    assert visit.cart == (CartItem(product="P1000", choices=(("color", "teal"), ("size", "large"))),)
    visit = apply_action(
        shop,
        apply_action(shop, replace(visit, open_page=OpenPage.PRODUCT), PageAction("add_to_cart")),
        PageAction("remove", "1"),
    )
    assert len(visit.cart) == 1
    assert current_page(shop, apply_action(shop, visit, PageAction("checkout"))).text == (
        'Checkout\n1. P1000 Salt & Pine 10" Lamp (color: teal, size: large) $22.49\nTotal: $22.49\nPlace the order\n'
        "Back to the results | Cart (1)"
    )
    end = apply_action(shop, visit, PageAction("place_order"))
    assert (end.is_over, current_page(shop, end).find(PageAction("search", "lamp"))) == (True, None)


def test_a_full_cart_takes_nothing_more() -> None:
    product = next(iter(SHOP.products.values()))
    chosen = tuple((name, next(iter(option.prices))) for name, option in product.options.items())
    cart_item = CartItem(product=product.id, choices=chosen)
    visit = ShopVisit(open_page=OpenPage.PRODUCT, product=product.id, choices=chosen, cart=(cart_item,) * MAX_LINES)
    page = current_page(SHOP, visit)
    assert page.find(PageAction("add_to_cart")) is None
    assert "The cart is full: 10 things fit." in page.text
    assert current_page(SHOP, replace(visit, cart=visit.cart[1:])).find(PageAction("add_to_cart"))


@pytest.mark.parametrize(
    "text, act",
    [
        (" open[P1000] ", PageAction("open", "P1000")),
        ("choose[size:   9.5\"]", PageAction("choose", 'size: 9.5"')),
        ("search[a [b] c]", PageAction("search", "a [b] c")),
        ("add_to_cart[]", PageAction("add_to_cart")),
        ("open P1000", None),
        ("first search[lamp]", None),
        ("", None),
    ],
)  # fmt: skip
def test_acts_are_read(text: str, act: PageAction | None) -> None:
    assert PageAction.read(text) == act


def test_a_page_offers_its_acts_in_any_case() -> None:
    page = ShopPage((PageLine("fit:", (LineCell("women's", PageAction("choose", "fit: women's")), LineCell("men's"))),))
    assert page.find(PageAction("choose", "Fit: WOMEN'S")) == PageAction("choose", "fit: women's")
    assert page.find(PageAction("choose", "fit: men's")) is None
    assert page.refusal(PageAction("choose", "x" * 100)).startswith(f"This page does not offer choose[{'x' * 53}...")


@settings(max_examples=40)
@given(st.lists(st.integers(0, 10**6), max_size=25))
def test_any_walk_stays_in_the_store(choices: list[int]) -> None:
    visit = ShopVisit()
    for choice in choices:
        page = current_page(SHOP, visit)
        acts = [cell.act for line in page.lines for cell in line.cells if cell.act]
        acts += [] if page.is_end else [PageAction("search", "blue tent")]
        assert all(page.find(act) == act for act in acts)
        if not acts:
            assert visit.is_over
            return
        visit = apply_action(SHOP, visit, acts[choice % len(acts)])
        assert len(visit.cart) <= MAX_LINES
