"""Tasks on the server `shop`."""

from collections.abc import Mapping, Sequence

from envgym.envs.tools._mcp.plans import McpTaskPlan
from envgym.envs.tools._mcp.sampling import WORDS, ServerSampler, TaskKind, request, suitable
from envgym.envs.tools._mcp.servers.protocol import Json, Tables
from envgym.envs.tools._office.plans import PlannedCall, plan_call

NUM_CUSTOMERS, NUM_ORDERS, IN_CATEGORY = 3, 3, 5
_STATES = ("open", "open", "shipped")


def _shop(draws: ServerSampler) -> tuple[str, dict[str, Json]]:
    ids, products = iter(draws.some([f"P{number}" for number in range(100, 1000)], 20)), dict[str, Json]()
    for category, things in WORDS["products"].items():
        names = [f"{make} {thing}" for make in WORDS["makes"] for thing in things]
        prices = draws.some(range(10, 200), IN_CATEGORY)
        for name, price in zip(draws.some(names, IN_CATEGORY), prices, strict=True):
            product = {"name": name, "category": category, "price": int(price), "stock": draws.between(0, 12)}
            products[next(ids)] = product
    customers = {f"{name.lower().replace(' ', '.')}@mail.example": name for name in draws.people(NUM_CUSTOMERS)}
    orders: dict[str, Json] = {}
    keys = sorted(draws.some([f"R{number}" for number in range(200, 900)], NUM_CUSTOMERS * NUM_ORDERS))
    addresses = {email: _address(draws) for email in customers}
    for key in keys:
        email = draws.one(list(customers))
        items = {item: draws.between(1, 3) for item in sorted(draws.some(list(products), draws.between(1, 2)))}
        orders[key] = {"email": email, "items": items, "address": addresses[email], "status": draws.one(_STATES)}
    accounts: dict[str, Json] = {
        email: {"name": name, "address": addresses[email]} for email, name in customers.items()
    }
    draws.tables = {"products": products, "customers": accounts, "orders": orders}
    return draws.one(list(customers)), products


def _address(draws: ServerSampler) -> str:
    return f"{draws.between(1, 120)} {draws.one(WORDS['streets'])}, {draws.one(WORDS['towns'])}"


def _who(draws: ServerSampler, email: str) -> str:
    return f"You act for {draws.tables['customers'][email]['name']} ({email})."


def _sign_in(email: str) -> PlannedCall:
    return plan_call("sign_in", email=email)


def _place(goal: Tables, email: str, items: Mapping[str, int]) -> list[PlannedCall]:
    address = goal["customers"][email]["address"]
    order = {"email": email, "items": dict(sorted(items.items())), "address": address, "status": "open"}
    goal["orders"]["R1000"] = order
    for key, count in items.items():
        goal["products"][key]["stock"] -= count
    added = [plan_call("add_to_cart", product_id=key, quantity=count) for key, count in items.items()]
    return [*added, plan_call("place_order")]


def _cancel(goal: Tables, key: str) -> PlannedCall:
    goal["orders"][key]["status"] = "cancelled"
    for product, count in goal["orders"][key]["items"].items():
        goal["products"][product]["stock"] += count
    return plan_call("cancel_order", order_id=key)


def order_product(draws: ServerSampler) -> McpTaskPlan:
    """Order some of a product that is named."""
    email, products = _shop(draws)
    key, count, goal = draws.one(list(products)), draws.between(1, 4), draws.goal()
    suitable(products[key]["stock"] >= count)
    name, who = products[key]["name"], _who(draws, email)
    return McpTaskPlan(
        texts=request("order_product", who=who, count=count, name=name),
        goal=goal,
        calls=(plan_call("search_products", text=name), _sign_in(email), *_place(goal, email, {key: count})),
    )


def change_address(draws: ServerSampler) -> McpTaskPlan:
    """Change the delivery address."""
    email, _ = _shop(draws)
    address, goal, who = _address(draws), draws.goal(), _who(draws, email)
    goal["customers"][email]["address"] = address
    return McpTaskPlan(
        texts=request("change_address", who=who, address=address),
        goal=goal,
        calls=(_sign_in(email), plan_call("show_account"), plan_call("change_address", address=address)),
    )


def order_cheapest(draws: ServerSampler) -> McpTaskPlan:
    """Order the cheapest product of a category of which there is enough."""
    email, products = _shop(draws)
    category, count, goal = draws.one(list(WORDS["products"])), draws.between(2, 5), draws.goal()
    inside = [key for key, item in products.items() if item["category"] == category]
    enough = [key for key in inside if products[key]["stock"] >= count]
    suitable(enough)
    key = min(enough, key=lambda item: int(products[item]["price"]))
    suitable(key != min(inside, key=lambda item: int(products[item]["price"])))
    who = _who(draws, email)
    return McpTaskPlan(
        texts=request("order_cheapest", who=who, count=count, category=category),
        goal=goal,
        calls=(plan_call("search_products", text=category), _sign_in(email), *_place(goal, email, {key: count})),
    )


def cancel_with_product(draws: ServerSampler) -> McpTaskPlan:
    """Cancel the only open order with a product."""
    email, products = _shop(draws)
    orders, goal, who = draws.tables["orders"], draws.goal(), _who(draws, email)
    own = [key for key, order in orders.items() if order["email"] == email and order["status"] == "open"]
    key = draws.one(own)
    product = draws.one(list(orders[key]["items"]))
    suitable(sum(product in orders[item]["items"] for item in own) == 1 and len(own) > 1)
    name = products[product]["name"]
    return McpTaskPlan(
        texts=request("cancel_with_product", who=who, name=name),
        goal=goal,
        calls=(_sign_in(email), plan_call("list_orders"), _cancel(goal, key)),
    )


def order_two(draws: ServerSampler) -> McpTaskPlan:
    """Order the cheapest product of one category and the dearest of another, within a price, in one order."""
    email, products = _shop(draws)
    first, second = draws.some(list(WORDS["products"]), 2)
    goal, who = draws.goal(), _who(draws, email)
    in_stock = {key: item for key, item in products.items() if item["stock"]}
    low = [key for key, item in in_stock.items() if item["category"] == first]
    high = [key for key, item in in_stock.items() if item["category"] == second]
    suitable(low and len(high) > 1)
    limit = int(draws.one([products[key]["price"] for key in high])) + 1
    below = [key for key in high if products[key]["price"] < limit]
    suitable(len(below) < len(high))
    items = {min(low, key=lambda key: int(products[key]["price"])): 1}
    items[max(below, key=lambda key: int(products[key]["price"]))] = 1
    return McpTaskPlan(
        texts=request("order_two", who=who, first=first, second=second, limit=limit),
        goal=goal,
        calls=(
            plan_call("search_products", text=first),
            plan_call("search_products", text=second),
            _sign_in(email),
            *_place(goal, email, items),
        ),
    )


def cancel_dear(draws: ServerSampler) -> McpTaskPlan:
    """Cancel all open orders above a total, then change the address."""
    email, products = _shop(draws)
    goal, who, address = draws.goal(), _who(draws, email), _address(draws)
    own = {key: order for key, order in draws.tables["orders"].items() if order["email"] == email}
    totals = {
        key: sum(int(products[item]["price"]) * int(count) for item, count in order["items"].items())
        for key, order in own.items()
    }
    limit = draws.between(5, 40) * 10
    dear = [key for key, order in own.items() if order["status"] == "open" and totals[key] > limit]
    suitable(len(dear) >= 2 and len(dear) < len(own))
    goal["customers"][email]["address"] = address
    return McpTaskPlan(
        texts=request("cancel_dear", who=who, limit=limit, address=address),
        goal=goal,
        calls=(
            _sign_in(email),
            plan_call("list_orders"),
            *(_cancel(goal, key) for key in dear),
            plan_call("change_address", address=address),
        ),
    )


TASK_KINDS: Mapping[int, Sequence[TaskKind]] = {
    1: (order_product, change_address),
    2: (order_cheapest, cancel_with_product),
    3: (order_two, cancel_dear),
}
