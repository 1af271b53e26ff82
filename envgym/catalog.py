"""The plug-ins of environments: verifiers, wrappers, parties and the text formats of actions."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from envgym.plugins import PluginKind

if TYPE_CHECKING:
    from envgym.parsing.formats import TextFormat
    from envgym.party import Party
    from envgym.verifiers.base import Verifier
    from envgym.wrappers.base import Wrapper

VERIFIER: Final["PluginKind[Verifier]"] = PluginKind(
    name="verifier",
    protocols=("envgym.verifiers.base:Verifier",),
    table={
        "exact": "envgym.verifiers.exact:Exact",
        "numeric": "envgym.verifiers.numeric:Numeric",
        "multiple_choice": "envgym.verifiers.multiple_choice:MultipleChoice",
        "f1": "envgym.verifiers.f1:F1",
        "pattern": "envgym.verifiers.pattern:Pattern",
        "json_schema": "envgym.verifiers.json_schema:JsonSchema",
        "math": "envgym.verifiers.math:Math",
    },
    is_function=True,
)
"""How an answer is scored."""

WRAPPER: Final["PluginKind[Wrapper]"] = PluginKind(
    name="wrapper",
    protocols=("envgym.wrappers.base:Wrapper",),
    arguments=("env",),
    table={
        "horizon": "envgym.wrappers.chaining:Horizon",
        "record": "envgym.wrappers.record:Record",
        "text_only": "envgym.wrappers.base:TextOnly",
        "time_limit": "envgym.wrappers.limits:TimeLimit",
        "try_again": "envgym.wrappers.chaining:TryAgain",
        "turn_limit": "envgym.wrappers.limits:TurnLimit",
    },
)
"""What is changed about an environment; a wrapper is built from the env, then its settings."""

PARTY: Final["PluginKind[Party]"] = PluginKind(
    name="party",
    protocols=("envgym.party:Party",),
    table={"scripted": "envgym.party:ScriptedParty"},
)
"""Another mind that an environment talks to."""

TEXT_FORMAT: Final["PluginKind[TextFormat]"] = PluginKind(
    name="text_format",
    protocols=("envgym.parsing.formats:TextFormat",),
    table={
        "hermes": "envgym.parsing.hermes:Hermes",
        "code_block": "envgym.parsing.code_block:CodeBlock",
        "xml_tags": "envgym.parsing.xml_tags:XmlTags",
        "react": "envgym.parsing.react:React",
        "plain": "envgym.parsing.formats:Plain",
    },
)
"""How thinking and tool calls are written as text."""

KINDS: Final[Mapping[str, "PluginKind[Any]"]] = MappingProxyType(  # each kind makes objects of its own type
    {kind.name: kind for kind in (VERIFIER, WRAPPER, PARTY, TEXT_FORMAT)}
)
"""Name -> kind."""
