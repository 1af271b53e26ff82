"""How an agent asks for something to be done on the user's phone, and how the scripted user understands it."""

import re
from dataclasses import dataclass

from envgym.core.json_types import JsonObject
from envgym.core.messages import ToolCall
from envgym.envs.data_files import read_toml

_OWN_DOING = re.compile(r"^(?!.*\b(?:you|please)\b).*\b(?:i|we)(?:'ll|'ve|'m|'re| will| have| am| are| can)\b")
"""A sentence in which the agent tells what it does itself."""
_OFF, _ON = r"\b(?:off|disabled?|deactivated?)\b", r"\b(?:on|enabled?|activated?)\b"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhoneRequest:
    """Something that can be done on the phone."""

    tool: str
    wording: str
    """How to ask for it; {name} is an argument."""
    verb: str
    """What a sentence must hold besides."""
    thing: str
    """What the request is about; where it stands decides the order of several."""


_PHONE = read_toml("tools/data/tau2_phone.toml")
REQUESTS = tuple(
    PhoneRequest(**{**row, "verb": _PHONE["verbs"].get(row["verb"], row["verb"])}) for row in _PHONE["requests"]
)
"""Changes first: what is changed is not looked at for the same words."""

_MODES = (
    ("4g_5g_preferred", r"4g.{0,4}5g|5g.{0,4}4g|5g"),
    ("4g_only", r"4g|lte"),
    ("3g_only", r"3g"),
    ("2g_only", r"2g"),
)
_APPS, _PERMISSIONS = r"\b(messaging|browser)\b", r"\b(sms|storage|phone|network|camera|location|contacts)\b"


def asking(tool: str, arguments: JsonObject) -> str:
    """Return how to ask for a call of one of the user's tools."""
    wordings = {item.tool: item.wording for item in REQUESTS}
    return wordings[tool].format(**arguments) if tool in wordings else f"Please use {tool} on your phone."


def wanted_calls(text: str) -> list[ToolCall]:
    """Return the calls that a message asks for on the phone, in the order of the text."""
    calls: list[tuple[int, ToolCall]] = []
    for sentence in re.finditer(r"[^.?!\n]+", text.lower()):
        if _OWN_DOING.search(sentence[0]):
            continue
        done: list[tuple[int, int]] = []
        for item in REQUESTS:
            match = re.search(item.thing, sentence[0])
            is_named = re.search(rf"\b{item.tool}\b", sentence[0]) is not None
            if not is_named and (match is None or not re.search(item.verb, sentence[0])):
                continue
            place = match.span() if match else (0, 0)
            if any(start <= place[0] < end for start, end in done) and not is_named:
                continue
            arguments = _arguments(item.tool, sentence[0])
            if arguments is not None:
                done.append(place)
                calls.append((sentence.start() + place[0], ToolCall(name=item.tool, arguments=arguments)))
    return [call for _, call in sorted(calls, key=lambda pair: pair[0])]


def wanted_state(text: str, tool: str) -> str | None:
    """Return `ON` or `OFF` where a message says how a switch should be left, None where it does not."""
    thing = next(item.thing for item in REQUESTS if item.tool == tool)
    for sentence in re.split(r"[.?!\n]+", text.lower()):
        if re.search(thing, sentence):
            off, on = re.search(_OFF, sentence), re.search(_ON, sentence)
            if (off is None) != (on is None):
                return "OFF" if off else "ON"
    return None


def _arguments(tool: str, sentence: str) -> dict[str, str] | None:
    app, permission = re.search(_APPS, sentence), re.search(_PERMISSIONS, sentence)
    match tool:
        case "set_network_mode_preference":
            mode = next((name for name, words in _MODES if re.search(words, sentence)), None)
            return None if mode is None else {"mode": mode}
        case "grant_app_permission":
            return {"app_name": app[1], "permission": permission[1]} if app and permission else None
        case "check_app_permissions":
            return {"app_name": app[1]} if app else None
    return {}
