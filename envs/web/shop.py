"""Buy what was asked for in an online store: `web/shop-v0`."""

from dataclasses import dataclass
from typing import Any, Self

from envgym.authoring import check_range
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, Observation
from envgym.core.tasks import Task
from envgym.env import Env, share_state
from envgym.envs.web._shop_catalogue import Catalogue, catalogue
from envgym.envs.web._shop_clients import ShopClient, ShopView, TextShop
from envgym.envs.web._shop_goals import GoalItem, ShopTasks, order_reward, read_goals
from envgym.envs.web._shop_oracle import next_act
from envgym.envs.web._shop_pages import PageAction
from envgym.envs.web._shop_store import MAX_QUERY, ShopVisit, search_products
from envgym.errors import InvalidInput, ToolError
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.tools import tool

CHANCE, CHANCE_TYPE_ONLY = 0.04, 0.07
"""What the best order that is the same for every task earns, and where only type and price are asked for; measured."""
_WHERE = "web/shop-v0"
_HINT = "Call a tool, or write one act such as search[desk lamp]."


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopState:
    """The goals of an episode, and the visit with its page."""

    goals: tuple[GoalItem, ...]
    view: ShopView


class Shop(Env[ShopState]):
    """The agent searches, opens, chooses, and fills a cart; the order ends the episode and is paid."""

    tasks: ShopTasks
    system_prompt = (
        "You shop in an online store for the person who writes to you. Order exactly what is asked for and nothing "
        "else: search, open a product, choose its options, add it to the cart, go to the checkout and place the order. "
        f"An order is final. {_HINT} Acts: search[words], open[product id], show_page[number], choose[option: value], "
        "add_to_cart[], remove[line], view_cart[], back[], checkout[], place_order[]."
    )

    def __init__(
        self,
        *,
        attributes: int = 2,
        options: int = 1,
        items: int = 1,
        all_or_nothing: bool = False,
        store: int = 0,
        products: int = 1500,
        browser: bool = False,
        max_turns: int | None = 40,
        **options_of_env: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the tasks and the client of the store.

        Args:
            attributes: Attributes asked for of each thing, 0 to 5.
            options: Options asked for of each thing, 0 to 2.
            items: Different things asked for, 1 to 3.
            all_or_nothing: Pay 1 for an order that is right in every part, else 0.
            store: Another number is another store, with other products.
            products: Products in the store, 1000 to 5000.
            browser: Go through real Chromium on pages served on this machine.
            max_turns: Turns until the episode is cut.
            **options_of_env: As in `Env`.

        Raises: InvalidInput: a value outside its range, or no browser is installed.
        """
        ranges = {
            "attributes": (0, 5),
            "options": (0, 2),
            "items": (1, 3),
            "store": (0, 2**31),
            "products": (1000, 5000),
        }
        settings = {"attributes": attributes, "options": options, "items": items, "store": store, "products": products}
        for name, (low, high) in ranges.items():
            check_range(name, settings[name], low, high, where=_WHERE)
        super().__init__(max_turns=max_turns, **options_of_env)
        self.chance_score = CHANCE if attributes or options else CHANCE_TYPE_ONLY
        self.all_or_nothing = all_or_nothing
        self.tasks = ShopTasks(**settings)
        self.blocking = browser
        self._client = _make_client(store, products, browser=browser)

    @property
    def shop(self) -> Catalogue:
        """All that the store sells."""
        return catalogue(self.tasks.store, self.tasks.products)

    def begin(self, task: Task) -> str:
        """Ask, and open the store's front page. Raises: InvalidInput: the task is of another store or env."""
        if task.payload.get("catalogue") != self.shop.fingerprint:
            do = "take it from an env with the same store and products"
            raise InvalidInput.of("task", "be of this store", task.id, where=_WHERE, do=do)
        self.state = ShopState(goals=read_goals(task.payload), view=self._client.enter(ShopVisit()))
        return f"{task.prompt}\n\n{self.state.view.page.text}"

    # ---- what can be done -------------------------------------------------------------------------------------

    @tool
    def search(self, query: str) -> str:
        """Search the store.

        Args:
            query: Words such as: dimmable desk lamp.
        """
        return self._do(PageAction("search", query))

    @tool
    def open(self, product: str) -> str:
        """Open the page of a product.

        Args:
            product: Its id in the results, such as P1234.
        """
        return self._do(PageAction("open", product))

    @tool
    def show_page(self, number: int) -> str:
        """Show another page of the results.

        Args:
            number: From 1.
        """
        return self._do(PageAction("show_page", str(number)))

    @tool
    def choose(self, option: str, value: str) -> str:
        """Choose an option of the open product.

        Args:
            option: Such as color.
            value: Such as navy.
        """
        return self._do(PageAction("choose", f"{option}: {value}"))

    @tool
    def add_to_cart(self) -> str:
        """Put the open product with the chosen options into the cart."""
        return self._do(PageAction("add_to_cart"))

    @tool
    def remove(self, line: int) -> str:
        """Take something out of the open cart.

        Args:
            line: Its number in the cart, from 1.
        """
        return self._do(PageAction("remove", str(line)))

    @tool
    def view_cart(self) -> str:
        """Open the cart."""
        return self._do(PageAction("view_cart"))

    @tool
    def back(self) -> str:
        """Go back to the results of the last search."""
        return self._do(PageAction("back"))

    @tool
    def checkout(self) -> str:
        """Go from the cart to the checkout."""
        return self._do(PageAction("checkout"))

    @tool
    def place_order(self) -> str:
        """Order what is in the cart, at the checkout. This is final."""
        return self._do(PageAction("place_order"))

    def _do(self, act: PageAction) -> str:
        view = self.state.view
        if len(act.argument) > MAX_QUERY:
            raise ToolError(f"{act.verb} takes at most {MAX_QUERY} characters, got {len(act.argument)}.")
        words = search_products(act.argument) if act.verb == "search" else " ".join(act.argument.split())
        offered = view.page.find(PageAction(act.verb, words))
        if offered is None:
            raise ToolError(view.page.refusal(act))
        self.state = ShopState(goals=self.state.goals, view=self._client.act(view, offered))
        return self.state.view.page.text

    def respond(self, action: Action) -> Reply:
        act = PageAction.read(action.content)
        if act is None:
            return Reply(observation=_HINT)
        try:
            return self._reply(self._do(act))
        except ToolError as refusal:
            return Reply(observation=str(refusal))

    def after_tools(self, observation: Observation) -> Reply:
        """Pay where the order was among the calls."""
        return self._reply(observation)

    def _reply(self, observation: str) -> Reply:
        visit = self.state.view.visit
        if not visit.is_over:
            return Reply(observation=observation)
        reward = order_reward(self.shop, self.state.goals, visit.cart, all_or_nothing=self.all_or_nothing)
        return Reply(observation=observation, reward=reward, terminated=True)

    # ---- the oracle, copies -----------------------------------------------------------------------------------

    def oracle(self) -> str:
        """Order the cheapest products that meet the goals."""
        act = next_act(self.shop, self.state.view.visit, self.state.goals)
        return tool_call_action(act.verb, **_arguments(act))

    fork_state = share_state

    def fork(self) -> Self:
        """Return a copy with a way into the store of its own."""
        twin = super().fork()
        twin._client = self._client.fresh()
        return twin

    def close(self) -> None:
        self._client.close()


def _make_client(store: int, products: int, *, browser: bool) -> ShopClient:
    if not browser:
        return TextShop(store, products)
    from envgym.envs.web._shop_browser import BrowserShop

    return BrowserShop(store, products)


def _arguments(act: PageAction) -> dict[str, JsonValue]:
    match act.verb:
        case "search":
            return {"query": act.argument}
        case "open":
            return {"product": act.argument}
        case "show_page":
            return {"number": int(act.argument)}
        case "remove":
            return {"line": int(act.argument)}
        case "choose":
            option, _, value = act.argument.partition(": ")
            return {"option": option, "value": value}
    return {}
