"""What a visitor does who knows which products meet the wishes."""

from collections.abc import Sequence

from envgym.envs.web._shop_catalogue import Catalogue
from envgym.envs.web._shop_goals import GoalItem, cheapest, target
from envgym.envs.web._shop_pages import PageAction
from envgym.envs.web._shop_store import PER_PAGE, CartItem, OpenPage, ShopVisit, search_products


def next_act(shop: Catalogue, visit: ShopVisit, wishes: Sequence[GoalItem]) -> PageAction:
    """Return the next act towards exactly the cart that is wished for, and its order, from any page.

    Searches by the words of the wish, as an agent would; by the title where they do not bring the product up.
    """
    missing, extra = list(wishes), []
    for at, piece in enumerate(visit.cart, start=1):
        wish = next((wish for wish in missing if _piece(shop, wish) == piece), None)
        if wish is None:
            extra.append(at)
        else:
            missing.remove(wish)
    if extra:
        return PageAction("remove", str(extra[0])) if visit.place is OpenPage.CART else PageAction("view_cart")
    if missing:
        return _towards(shop, visit, missing[0])
    if visit.place is OpenPage.CHECKOUT:
        return PageAction("place_order")
    return PageAction("checkout") if visit.place is OpenPage.CART else PageAction("view_cart")


def _towards(shop: Catalogue, visit: ShopVisit, wish: GoalItem) -> PageAction:
    """Return the next act towards one more thing in the cart."""
    piece = _piece(shop, wish)
    if visit.place is OpenPage.PRODUCT and visit.product == piece.product:
        chosen = dict(visit.chosen)
        wrong = next((f"{name}: {value}" for name, value in piece.chosen if chosen.get(name) != value), None)
        return PageAction("choose", wrong) if wrong is not None else PageAction("add_to_cart")
    words, rank = _query(shop, wish, piece.product)
    if visit.place is not OpenPage.RESULTS or visit.query != words:
        return PageAction("search", words)
    page = rank // PER_PAGE + 1
    return PageAction("open", piece.product) if visit.number == page else PageAction("show_page", str(page))


def _query(shop: Catalogue, wish: GoalItem, product: str) -> tuple[str, int]:
    """Return words that bring the product onto the pages of results, and its rank there, from 0."""
    for text in (f"{' '.join(wish.attributes)} {wish.type}", shop.products[product].title):
        words = search_products(text)
        found = shop.index.search(words).ids
        if product in found:
            break
    return words, found.index(product)


def _piece(shop: Catalogue, wish: GoalItem) -> CartItem:
    """Return the piece that meets the wish at the lowest price."""
    product = target(shop, wish)
    return CartItem(product=product.id, chosen=tuple(cheapest(product, wish.options).items()))
