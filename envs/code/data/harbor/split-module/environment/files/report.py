"""Print a report of a small stock."""

from shop.everything import Stock, discount, net


def main():
    stock = Stock()
    stock.add("spade", 3, 10.0)
    stock.add("rake", 2, 7.5)
    stock.add("spade", 1, 10.0)
    print("spades", stock.cnt("spade"))
    print("rakes", stock.cnt("rake"))
    print("value", round(stock.value(), 2), round(stock.value(10), 2))
    print("net", net(12.0), discount(9.99, 50))


if __name__ == "__main__":
    main()
