"""The store itself: what a visitor sees, and what each act changes. Pure functions over an immutable visit."""

from dataclasses import dataclass, replace
from enum import StrEnum

from envgym.envs.web._shop_catalogue import Catalogue, Product
from envgym.envs.web._shop_pages import LineCell, PageAction, PageLine, ShopPage
from envgym.envs.web._shop_search import MAX_WORDS, words_of

PER_PAGE = 10
MAX_LINES = 10
"""Things that fit into the cart."""
MAX_QUERY = 300
"""Characters of a query."""


class OpenPage(StrEnum):
    HOME = "home"
    RESULTS = "results"
    PRODUCT = "product"
    CART = "cart"
    CHECKOUT = "checkout"
    THANKS = "thanks"


@dataclass(frozen=True, slots=True, kw_only=True)
class CartItem:
    product: str
    choices: tuple[tuple[str, str], ...]
    """Option and value, in the product's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopVisit:
    open_page: OpenPage = OpenPage.HOME
    query: str = ""
    """The words searched for last."""
    number: int = 1
    """The page of results, from 1."""
    product: str = ""
    """The product looked at."""
    choices: tuple[tuple[str, str], ...] = ()
    """Its options as chosen so far."""
    cart: tuple[CartItem, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.open_page is OpenPage.THANKS


def dollars(cents: int) -> str:
    return f"${cents // 100}.{cents % 100:02}"


def apply_action(shop: Catalogue, visit: ShopVisit, act: PageAction) -> ShopVisit:
    match act.verb:
        case "search":
            return replace(visit, open_page=OpenPage.RESULTS, query=search_products(act.argument), number=1)
        case "show_page":
            return replace(visit, number=int(act.argument))
        case "open":
            return replace(visit, open_page=OpenPage.PRODUCT, product=act.argument, choices=())
        case "choose":
            return replace(visit, choices=_chosen(shop.products[visit.product], visit.choices, act.argument))
        case "add_to_cart":
            cart_item = CartItem(product=visit.product, choices=visit.choices)
            return replace(visit, open_page=OpenPage.CART, cart=(*visit.cart, cart_item))
        case "remove":
            at = int(act.argument) - 1
            return replace(visit, cart=visit.cart[:at] + visit.cart[at + 1 :])
        case "back":
            return replace(visit, open_page=OpenPage.RESULTS)
        case "view_cart":
            return replace(visit, open_page=OpenPage.CART)
        case "checkout":
            return replace(visit, open_page=OpenPage.CHECKOUT)
    assert act.verb == "place_order", "no page offers anything else"
    return replace(visit, open_page=OpenPage.THANKS)


def search_products(text: str) -> str:
    """Return the words of a query as they are searched for and shown."""
    return " ".join(dict.fromkeys(words_of(text[:MAX_QUERY])[:MAX_WORDS]))


def _chosen(product: Product, before: tuple[tuple[str, str], ...], argument: str) -> tuple[tuple[str, str], ...]:
    name, _, value = argument.partition(": ")
    choices = {**dict(before), name: value}
    return tuple((key, choices[key]) for key in product.options if key in choices)


def current_page(shop: Catalogue, visit: ShopVisit) -> ShopPage:
    """Return the page that the visitor sees."""
    match visit.open_page:
        case OpenPage.HOME:
            return ShopPage((PageLine("Welcome to the store. Search for what you need."), *_footer(visit)))
        case OpenPage.RESULTS:
            return ShopPage((*_results(shop, visit), *_footer(visit)))
        case OpenPage.PRODUCT:
            return ShopPage((*_details(shop.products[visit.product], visit), *_footer(visit)))
        case OpenPage.CART:
            return ShopPage((*_cart(shop, visit, "Your cart"), *_footer(visit)))
        case OpenPage.CHECKOUT:
            order = PageLine("", (LineCell("Place the order", PageAction("place_order")),))
            return ShopPage((*_bill(shop, visit, "Checkout"), order, *_footer(visit)))
        case OpenPage.THANKS:
            return ShopPage((*_bill(shop, visit, "Thank you for your order"),), is_end=True)


def _footer(visit: ShopVisit) -> tuple[PageLine, ...]:
    cells = [LineCell(f"Cart ({len(visit.cart)})", PageAction("view_cart"))]
    if visit.query and visit.open_page is not OpenPage.RESULTS:
        cells.insert(0, LineCell("Back to the results", PageAction("back")))
    return (PageLine("", tuple(cells)),)


def _results(shop: Catalogue, visit: ShopVisit) -> tuple[PageLine, ...]:
    hits = shop.index.search(visit.query)
    if not hits.ids:
        return (PageLine(f"Nothing was found for: {visit.query or 'no words'}. Search for other words."),)
    products = [shop.products[id] for id in hits.ids[PER_PAGE * (visit.number - 1) : PER_PAGE * visit.number]]
    rows = [
        PageLine(
            "",
            (LineCell(one.id, PageAction("open", one.id)), LineCell(one.title), LineCell(f"from {dollars(one.cents)}")),
        )
        for one in products
    ]
    pages = range(1, -(-len(hits.ids) // PER_PAGE) + 1)
    numbers = tuple([LineCell(str(page), PageAction("show_page", str(page)), page == visit.number) for page in pages])
    return (PageLine(f"Results for: {visit.query} ({hits.total} found)"), *rows, PageLine("Page:", numbers))


def _details(product: Product, visit: ShopVisit) -> tuple[PageLine, ...]:
    choices, kind = dict(visit.choices), product.kind
    options = tuple(
        PageLine(
            f"{name}:",
            tuple(
                [
                    LineCell(_value(value, more), PageAction("choose", f"{name}: {value}"), choices.get(name) == value)
                    for value, more in option.prices.items()
                ]
            ),
        )
        for name, option in product.options.items()
    )
    missing = [name for name in product.options if name not in choices]
    if missing:
        basket = PageLine(f"To add it to the cart, choose {' and '.join(missing)}.")
    elif len(visit.cart) >= MAX_LINES:
        basket = PageLine(f"The cart is full: {MAX_LINES} things fit.")
    else:
        basket = PageLine("", (LineCell("Add to cart", PageAction("add_to_cart")),))
    return (
        PageLine(f"{product.id}: {product.title}"),
        PageLine(f"{kind.department} > {kind.category} > {kind.name}"),
        PageLine(f"Price: {dollars(product.price(choices))}. Rated {product.rating}."),
        PageLine(product.about),
        PageLine(f"Features: {'; '.join(product.features)}"),
        *options,
        basket,
    )


def _value(value: str, more: int) -> str:
    return f"{value} (+{dollars(more)})" if more else value


def _cart(shop: Catalogue, visit: ShopVisit, title: str) -> tuple[PageLine, ...]:
    if not visit.cart:
        return (PageLine(f"{title} is empty."),)
    head, *cart_items, total = _bill(shop, visit, title)
    rows = [
        PageLine(cart_item.label, (LineCell("Remove", PageAction("remove", str(at))),))
        for at, cart_item in enumerate(cart_items, start=1)
    ]
    return (head, *rows, total, PageLine("", (LineCell("Go to checkout", PageAction("checkout")),)))


def _bill(shop: Catalogue, visit: ShopVisit, title: str) -> tuple[PageLine, ...]:
    products = [shop.products[cart_item.product] for cart_item in visit.cart]
    prices = [product.price(dict(cart_item.choices)) for product, cart_item in zip(products, visit.cart, strict=True)]
    rows = [
        PageLine(f"{at}. {product.id} {product.title} ({_choices_text(cart_item)}) {dollars(price)}")
        for at, (product, cart_item, price) in enumerate(zip(products, visit.cart, prices, strict=True), start=1)
    ]
    return (PageLine(title), *rows, PageLine(f"Total: {dollars(sum(prices))}"))


def _choices_text(cart_item: CartItem) -> str:
    return ", ".join(f"{name}: {value}" for name, value in cart_item.choices)
