"""The package must be divided, and behave as before."""

import subprocess
import sys


def as_agent(*command: str, given: str = "") -> str:
    """Return the output of a command of the agent's user; none if it fails or takes long."""
    words = ["/usr/bin/setpriv", "--reuid=agent", "--regid=agent", "--clear-groups", "--", *command]
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, errors="replace", timeout=20, cwd="/app")
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""

CODE = """
import sys
sys.path.insert(0, "/app")
import shop, shop.prices, shop.stock
from shop import Stock, discount, gross, net
stock = Stock()
stock.add("hoe", 4, 5.0)
homes = [item.__module__ for item in (net, gross, discount, Stock)]
print(homes, stock.count("hoe"), hasattr(stock, "cnt"), gross(10), stock.value(50))
"""
WANT = "['shop.prices', 'shop.prices', 'shop.prices', 'shop.stock'] 4 False 12.0 12.0\n"
REPORT = "spades 4\nrakes 2\nvalue 66.0 59.4\nnet 10.0 5.0\n"
as_python = ("/usr/bin/python3", "-B")
names = as_agent("/bin/sh", "-c", "ls shop; grep -rlE 'everything|[.]cnt' --include='*.py' . || echo none")
shown = as_agent(*as_python, "-I", "-c", CODE)
report = as_agent(*as_python, "report.py")
tests = as_agent("/bin/sh", "-c", "python3 -B -m unittest tests.test_stock 2>&1")
is_gone = "everything.py" not in names and names.endswith("none\n")
sys.exit(not (is_gone and shown == WANT and report == REPORT and "Ran 1 test" in tests))
