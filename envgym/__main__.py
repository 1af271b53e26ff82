"""`python -m envgym`."""

import sys

from envgym.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
