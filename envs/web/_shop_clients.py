"""Clients of the store, and the one that needs no browser: its pages come straight from the state."""

from dataclasses import dataclass
from typing import Protocol, Self

from envgym.envs.web._shop_catalogue import catalogue
from envgym.envs.web._shop_pages import PageAction, ShopPage
from envgym.envs.web._shop_store import ShopVisit, apply_action, current_page


@dataclass(frozen=True, slots=True)
class ShopView:
    """A visit, and the page that the visitor sees."""

    visit: ShopVisit
    page: ShopPage


class ShopClient(Protocol):
    """How an env reaches the store; used by one env."""

    def enter(self, visit: ShopVisit) -> ShopView: ...

    def act(self, view: ShopView, act: PageAction) -> ShopView:
        """Do what `seen.page` offers. Raises: InfrastructureError: the store cannot be reached."""
        ...

    def fresh(self) -> Self:
        """Return a client of the same kind for another env."""
        ...

    def close(self) -> None:
        """Release what it holds; it may be used again."""
        ...


@dataclass(frozen=True, slots=True)
class TextShop:
    """Deterministic, without a process, a page or a port."""

    store: int
    products: int

    def enter(self, visit: ShopVisit) -> ShopView:
        return ShopView(visit, current_page(catalogue(self.store, self.products), visit))

    def act(self, view: ShopView, act: PageAction) -> ShopView:
        return self.enter(apply_action(catalogue(self.store, self.products), view.visit, act))

    def fresh(self) -> Self:
        """Return itself: it holds nothing."""
        return self

    def close(self) -> None:
        """Do nothing."""
