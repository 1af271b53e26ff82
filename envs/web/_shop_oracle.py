"""The oracle: it knows which products meet the goals."""

from collections.abc import Sequence

from envgym.envs.web._shop_catalogue import Catalogue
from envgym.envs.web._shop_goals import GoalItem, cheapest, target
from envgym.envs.web._shop_pages import PageAction
from envgym.envs.web._shop_store import PER_PAGE, CartItem, OpenPage, ShopVisit, search_products


def next_act(shop: Catalogue, visit: ShopVisit, goals: Sequence[GoalItem]) -> PageAction:
    """Return the next act towards an order of exactly what meets the goals, from any page.

    Searches by the words of the goal, as an agent would; by the title where they do not bring the product up.
    """
    missing, extra = list(goals), []
    for at, cart_item in enumerate(visit.cart, start=1):
        goal = next((goal for goal in missing if _cart_item(shop, goal) == cart_item), None)
        if goal is None:
            extra.append(at)
        else:
            missing.remove(goal)
    if extra:
        return PageAction("remove", str(extra[0])) if visit.open_page is OpenPage.CART else PageAction("view_cart")
    if missing:
        return _towards(shop, visit, missing[0])
    if visit.open_page is OpenPage.CHECKOUT:
        return PageAction("place_order")
    return PageAction("checkout") if visit.open_page is OpenPage.CART else PageAction("view_cart")


def _towards(shop: Catalogue, visit: ShopVisit, goal: GoalItem) -> PageAction:
    cart_item = _cart_item(shop, goal)
    if visit.open_page is OpenPage.PRODUCT and visit.product == cart_item.product:
        choices = dict(visit.choices)
        wrong = next((f"{name}: {value}" for name, value in cart_item.choices if choices.get(name) != value), None)
        return PageAction("choose", wrong) if wrong is not None else PageAction("add_to_cart")
    words, rank = _query(shop, goal, cart_item.product)
    if visit.open_page is not OpenPage.RESULTS or visit.query != words:
        return PageAction("search", words)
    page = rank // PER_PAGE + 1
    return PageAction("open", cart_item.product) if visit.number == page else PageAction("show_page", str(page))


def _query(shop: Catalogue, goal: GoalItem, product: str) -> tuple[str, int]:
    """Return words that bring the product onto the pages of results, and its rank there, from 0."""
    for text in (f"{' '.join(goal.attributes)} {goal.type}", shop.products[product].title):
        words = search_products(text)
        ids = shop.index.search(words).ids
        if product in ids:
            break
    return words, ids.index(product)


def _cart_item(shop: Catalogue, goal: GoalItem) -> CartItem:
    product = target(shop, goal)
    return CartItem(product=product.id, choices=tuple(cheapest(product, goal.options).items()))
