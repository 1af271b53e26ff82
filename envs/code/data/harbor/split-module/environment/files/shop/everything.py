"""Prices and stock."""

RATE = 0.2


def net(price):
    """Return a price without tax."""
    return round(price / (1 + RATE), 2)


def gross(price):
    """Return a price with tax."""
    return round(price * (1 + RATE), 2)


def discount(price, percent):
    """Return a price reduced by a share in percent."""
    if not 0 <= percent <= 100:
        raise ValueError("percent must be 0 to 100")
    return round(price * (100 - percent) / 100, 2)


class Stock:
    """What lies on the shelves, and what it is worth."""

    def __init__(self):
        self._items = {}

    def add(self, name, number, price):
        """Add items of one price."""
        count, _ = self._items.get(name, (0, 0))
        self._items[name] = (count + number, price)

    def cnt(self, name):
        """Return how many there are."""
        return self._items.get(name, (0, 0))[0]

    def value(self, percent=0):
        """Return the gross value of all items, reduced by a share in percent."""
        return sum(number * gross(discount(price, percent)) for number, price in self._items.values())
