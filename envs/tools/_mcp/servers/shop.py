"""A server of an online shop. A customer signs in to see orders and fill a cart; a filled cart can be ordered."""

from envgym.envs.tools._mcp.servers.protocol import Json, McpServer, Refusal, serve


class StoreServer(McpServer):
    """Products with stock, customers with addresses, and their orders."""

    name = "shop"
    graded = ("products", "customers", "orders")

    def new_session(self) -> Json:
        return {"email": None, "cart": {}}

    def groups(self) -> frozenset[str]:
        """Offer an account to who is signed in, and checkout while something is in the cart."""
        customer = {"customer"} if self.session["email"] else {"guest"}
        return frozenset(customer | ({"cart"} if self.session["cart"] else set()))

    def search_products(self, text: str) -> list[Json]:
        products = sorted(self.tables["products"].items())
        return [
            {"product_id": key, **product}
            for key, product in products
            if text.lower() in f"{product['name']} {product['category']}".lower()
        ]

    def list_categories(self) -> list[str]:
        return sorted({product["category"] for product in self.tables["products"].values()})

    def sign_in(self, email: str) -> str:
        customer = self.find("customers", email, "customer with the address")
        self.session["email"] = email
        return f"Signed in as {customer['name']}."

    def sign_out(self) -> str:
        self.session.update(self.new_session())
        return "Signed out."

    def show_account(self) -> Json:
        customer = self.tables["customers"][self.session["email"]]
        return {"email": self.session["email"], **customer}

    def change_address(self, address: str) -> str:
        self.tables["customers"][self.session["email"]]["address"] = address
        return "The address is changed."

    def list_orders(self) -> list[Json]:
        orders = [item for item in self.tables["orders"].items() if item[1]["email"] == self.session["email"]]
        return [self._show_order(key, order) for key, order in sorted(orders)]

    def cancel_order(self, order_id: str) -> str:
        order = self.tables["orders"].get(order_id)
        if order is None or order["email"] != self.session["email"]:
            raise Refusal(f"There is no order {order_id!r:.100} of this customer.")
        if order["status"] != "open":
            raise Refusal(f"Order {order_id} cannot be cancelled: it is {order['status']}.")
        order["status"] = "cancelled"
        for key, count in order["items"].items():
            self.tables["products"][key]["stock"] += count
        return f"Order {order_id} is cancelled."

    def add_to_cart(self, product_id: str, quantity: int) -> Json:
        product, cart = self.find("products", product_id, "product"), self.session["cart"]
        total = cart.get(product_id, 0) + quantity
        if total > product["stock"]:
            raise Refusal(f"Only {product['stock']} of {product_id} are in stock.")
        cart[product_id] = total
        return self.show_cart()

    def remove_from_cart(self, product_id: str) -> Json:
        if product_id not in self.session["cart"]:
            raise Refusal(f"{product_id!r:.100} is not in the cart.")
        del self.session["cart"][product_id]
        return self.show_cart()

    def show_cart(self) -> Json:
        return {"items": dict(self.session["cart"]), "total": self._total(self.session["cart"])}

    def place_order(self) -> Json:
        email, items = self.session["email"], dict(sorted(self.session["cart"].items()))
        address = self.tables["customers"][email]["address"]
        key = self.new_id("orders", "R")
        self.tables["orders"][key] = {"email": email, "items": items, "address": address, "status": "open"}
        for product, count in items.items():
            self.tables["products"][product]["stock"] -= count
        self.session["cart"] = {}
        return self._show_order(key, self.tables["orders"][key])

    def _total(self, items: Json) -> int:
        return sum(int(self.tables["products"][key]["price"]) * int(count) for key, count in items.items())

    def _show_order(self, key: str, order: Json) -> Json:
        names = {self.tables["products"][item]["name"]: count for item, count in order["items"].items()}
        summary = {"order_id": key, "status": order["status"], "items": names, "total": self._total(order["items"])}
        return summary | {"address": order["address"]}


if __name__ == "__main__":
    serve(StoreServer)
