"""What a visitor does who knows which products meet the wishes."""

from collections.abc import Sequence

from envgym.envs.web._shop_catalogue import Catalogue
from envgym.envs.web._shop_goals import Wish, cheapest, target
from envgym.envs.web._shop_pages import Act
from envgym.envs.web._shop_store import PER_PAGE, Piece, Place, Visit, searched


def next_act(shop: Catalogue, visit: Visit, wishes: Sequence[Wish]) -> Act:
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
        return Act("remove", str(extra[0])) if visit.place is Place.CART else Act("view_cart")
    if missing:
        return _towards(shop, visit, missing[0])
    if visit.place is Place.CHECKOUT:
        return Act("place_order")
    return Act("checkout") if visit.place is Place.CART else Act("view_cart")


def _towards(shop: Catalogue, visit: Visit, wish: Wish) -> Act:
    """Return the next act towards one more thing in the cart."""
    piece = _piece(shop, wish)
    if visit.place is Place.PRODUCT and visit.product == piece.product:
        chosen = dict(visit.chosen)
        wrong = next((f"{name}: {value}" for name, value in piece.chosen if chosen.get(name) != value), None)
        return Act("choose", wrong) if wrong is not None else Act("add_to_cart")
    words, rank = _query(shop, wish, piece.product)
    if visit.place is not Place.RESULTS or visit.query != words:
        return Act("search", words)
    page = rank // PER_PAGE + 1
    return Act("open", piece.product) if visit.number == page else Act("show_page", str(page))


def _query(shop: Catalogue, wish: Wish, product: str) -> tuple[str, int]:
    """Return words that bring the product onto the pages of results, and its rank there, from 0."""
    for text in (f"{' '.join(wish.attributes)} {wish.type}", shop.products[product].title):
        words = searched(text)
        found = shop.index.search(words).ids
        if product in found:
            break
    return words, found.index(product)


def _piece(shop: Catalogue, wish: Wish) -> Piece:
    """Return the piece that meets the wish at the lowest price."""
    product = target(shop, wish)
    return Piece(product=product.id, chosen=tuple(cheapest(product, wish.options).items()))
