"""The table of plug-ins of agents: names and import paths, read from `tables.toml`; no plug-in is imported."""

from pathlib import Path
from typing import Final

from envgym.config.plugins import read_kinds

KINDS: Final = read_kinds(Path(__file__).with_suffix(".toml"))
"""Name -> kind. The constant of a kind is defined next to its protocol."""
