"""The plug-ins of environments: verifiers, wrappers, parties and the text formats of actions."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from envgym.plugins import PluginKind, read_kinds

if TYPE_CHECKING:
    from envgym.parsing.formats import TextFormat
    from envgym.party import Party
    from envgym.verifiers.base import Verifier
    from envgym.wrappers.base import Wrapper

KINDS: Final = read_kinds(Path(__file__).with_suffix(".toml"))
"""Name -> kind."""

VERIFIER: Final[PluginKind["Verifier"]] = KINDS["verifier"]
WRAPPER: Final[PluginKind["Wrapper"]] = KINDS["wrapper"]
PARTY: Final[PluginKind["Party"]] = KINDS["party"]
TEXT_FORMAT: Final[PluginKind["TextFormat"]] = KINDS["text_format"]
