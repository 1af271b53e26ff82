#!/bin/bash
set -e
cd /app
python3 - <<'CODE'
from pathlib import Path

text = Path("shop/everything.py").read_text()
head, _, stock = text.partition("class Stock")
prices = head.replace('"""Prices and stock."""', '"""Prices."""')
Path("shop/prices.py").write_text(prices.rstrip() + "\n")
stock = '"""Stock."""\n\nfrom shop.prices import discount, gross\n\n\nclass Stock' + stock.replace("def cnt", "def count")
Path("shop/stock.py").write_text(stock)
Path("shop/__init__.py").write_text("\"\"\"A small shop.\"\"\"\n\nfrom shop.prices import discount, gross, net\nfrom shop.stock import Stock\n")
Path("shop/everything.py").unlink()
for name in ("report.py", "tests/test_stock.py"):
    path = Path(name)
    path.write_text(path.read_text().replace("shop.everything", "shop").replace(".cnt(", ".count("))
CODE
