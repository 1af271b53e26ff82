"""Reads what is marked inside a line: pairs of a kind and a text."""

import re

_MARK = re.compile(
    r"\\(?P<escaped>[\\`*\[\]()#>-])"
    r"|`(?P<code>[^`]+)`"
    r"|\*\*(?P<strong>[^*]+)\*\*"
    r"|\*(?P<emphasis>[^*\s](?:[^*]*[^*\s])?)\*"
    r"|\[(?P<label>[^\]]*)\]\((?P<address>[^()\s]*)\)"
)


def parts(line):
    """Return (kind, text, address) for each part; kind is text, code, strong, emphasis or link."""
    found = []
    plain = ""
    position = 0
    for match in _MARK.finditer(line):
        plain += line[position : match.start()]
        position = match.end()
        if match.group("escaped"):
            plain += match.group("escaped")
            continue
        if plain:
            found.append(("text", plain, ""))
            plain = ""
        if match.group("address") is not None:
            found.append(("link", match.group("label") or match.group("address"), match.group("address")))
        else:
            found.append((match.lastgroup, match.group(match.lastgroup), ""))
    plain += line[position:]
    if plain:
        found.append(("text", plain, ""))
    return found


def plain(line):
    """Return a line without marks."""
    return "".join(text for _, text, _ in parts(line))
