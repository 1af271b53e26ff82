"""What an agent may say to Coq, and what it is shown: tactics and bullets, never a command.

A tactic is sent as `1: ( TACTIC ).`, so Coq reads it as an Ltac expression or refuses it: no command is one. That this
is one sentence follows from what is refused here: strings and comments, in which a full stop would not end a sentence,
and a full stop before a space.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from envgym.parsing.fences import read_fences

MAX_CHARS = 4000
"""Of one tactic."""
MAX_SENTENCES = 400
"""Of a whole proof."""
MAX_MESSAGE = 100_000
"""Characters of a message."""
MAX_BULLETS = 20
"""Bullets and braces in a row."""
MAX_BRACES = 40
"""Braces that are open at a time: the time that Coq takes grows with the square of their number."""
MAX_SHOWN = 3000
"""Characters of goals or of a message that are shown."""
_BULLET = re.compile(r"[-+*]{1,4}(?![-+*>])|[{}]")
_SELECTOR = re.compile(r"(all|[1-9][0-9]?) ?:(?!=) ?")
_REFUSED = re.compile(
    r"(?<![\w'])(?:admit|give_up|native_compute|time|timeout|time_constr|restart_timer|finish_timing|profile|profiling"
    r"|prompt)(?![\w'])"
)
"""What proves nothing, and what depends on the machine or its clock."""
_AUTOMATION = re.compile(
    r"(?<![\w'])(?:auto|eauto|dtauto|tauto|rtauto|btauto|intuition|dintuition|gintuition|firstorder|easy|now|congruence"
    r"|trivial|info_auto|info_eauto|debug|lia|nia|lra|nra|psatz|zify|ring|ring_simplify|field|omega)(?:_\w+)?(?![\w'])"
)
"""Tactics that search for a proof."""
_HEAD = re.compile(r"\s*(?:Theorem|Lemma|Example|Corollary|Proposition|Fact|Remark)\b")
_PROMPT = re.compile(r"<prompt>[^<]*< (\d+) \|[^<]*< </prompt>$")
_ASIDES = re.compile(r"<(infomsg|warning)>.*?</\1>\n?", re.DOTALL)
_GOAL_ID = re.compile(r" \(ID \d+\)")
_NUMBERED = re.compile(r"(\?[MX]|\b[A-Za-z]\w*\.)(\d+)\b")
"""Unknowns and universes, which are counted as long as Coq runs."""
_PLACE = re.compile(r"^Toplevel input, characters [\d-]+:\n(?:>.*\n)*", re.MULTILINE)
_OPENING, _CLOSING = "([{", ")]}"


class TacticRefused(Exception):
    """A text that is not sent to Coq; the message tells the agent why."""


def read_tactic(text: str, *, automation: bool) -> tuple[str, ...]:
    """Return the sentences of one tactic, with the bullets before it. Raises: TacticRefused: it is another thing."""
    sentences = _split(_plain(_unfenced(text)))
    tactics = [sentence for sentence in sentences if not _BULLET.fullmatch(sentence)]
    if len(tactics) > 1:
        raise TacticRefused("Write one tactic at a time; tactics joined by ; are one.")
    return tuple(_sentence(sentence, automation=automation) for sentence in sentences)


def read_proof(text: str, *, automation: bool) -> tuple[str, ...]:
    """Return the sentences of a whole proof, without its statement, `Proof.` and `Qed.`. Raises: TacticRefused."""
    sentences = _split(_plain(without_comments(_unfenced(text))))
    if sentences and _HEAD.match(sentences[0]):
        sentences = sentences[1:]
    if sentences and sentences[0] == "Proof":
        sentences = sentences[1:]
    if sentences and sentences[-1] == "Qed":
        sentences = sentences[:-1]
    if not sentences:
        raise TacticRefused("Write the tactics of the proof.")
    if len(sentences) > MAX_SENTENCES:
        raise TacticRefused(f"The proof has {len(sentences)} sentences; at most {MAX_SENTENCES} are read.")
    return tuple(_sentence(sentence, automation=automation) for sentence in sentences)


def check_braces(sentences: Iterable[str]) -> None:
    """Check that few braces are open at any time. Raises: TacticRefused."""
    num_open = 0
    for sentence in sentences:
        num_open += (sentence == "{") - (sentence == "}")
        if num_open > MAX_BRACES:
            raise TacticRefused(f"At most {MAX_BRACES} braces may be open at a time.")


def without_comments(text: str) -> str:
    """Return a text with a space in place of each comment; comments nest. Raises: TacticRefused: one is not closed."""
    parts: list[str] = []
    depth = start = 0
    for mark in re.finditer(r"\(\*|\*\)", text):
        if mark[0] == "(*":
            if depth == 0:
                parts += [text[start : mark.start()], " "]
            depth += 1
        elif depth > 0:
            depth -= 1
            start = mark.end()
    if depth:
        raise TacticRefused("A comment is not closed.")
    return "".join([*parts, text[start:]])


def split_sentences(text: str) -> list[str]:
    """Split trusted Coq, such as the head of a data set, into its sentences; their full stops stay.

    A full stop in a string or a comment ends none.
    """
    sentences: list[str] = []
    start = 0
    for piece in re.finditer(r'"[^"]*"|\(\*.*?\*\)|\.(?=\s|$)', text, re.DOTALL):
        if piece[0] == ".":
            sentences.append(" ".join(text[start : piece.end()].split()))
            start = piece.end()
    rest = " ".join(text[start:].split())
    return [*sentences, *([rest] if rest else [])]


# ---- what Coq says ---------------------------------------------------------------------------------------------------


def read_reply(text: str) -> tuple[str, int] | None:
    """Return Coq's output, without asides and without numbers that depend on earlier sentences, and the
    state it is in; None: it has ended.
    """
    prompt = _PROMPT.search(text)
    if prompt is None:
        return None
    reply = _GOAL_ID.sub("", _PLACE.sub("", _ASIDES.sub("", text[: prompt.start()])))
    numbers: dict[str, int] = {}
    reply = _NUMBERED.sub(lambda match: f"{match[1]}{numbers.setdefault(match[0], len(numbers) + 1)}", reply)
    return "\n".join(line.rstrip() for line in reply.splitlines()).strip("\n"), int(prompt[1])


def shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}\n... ({len(text) - MAX_SHOWN} characters left out)"


# ---- how -------------------------------------------------------------------------------------------------------------


def _unfenced(text: str) -> str:
    """Return the last fenced block of Coq with `Qed.`, else the last of Coq, else the last unmarked; else the text."""
    if "```" not in text and "~~~" not in text:
        return text
    blocks = [block for block in read_fences(text, inline=True) if block.text.strip()]
    marked = [block.text for block in blocks if block.language == "coq"]
    whole = [code for code in marked if "Qed." in code]
    unmarked = [block.text for block in blocks if not block.language]
    return (whole or marked or unmarked or [block.text for block in blocks] or [text])[-1]


def _plain(text: str) -> str:
    """Return a text on one line. Raises: TacticRefused: it is too long, or holds what no tactic needs."""
    if len(text) > MAX_MESSAGE:
        raise TacticRefused(f"The message has {len(text)} characters; at most {MAX_MESSAGE} are read.")
    if any(not (" " <= letter <= "~" or letter in "\n\t\r") for letter in text):
        raise TacticRefused("Write plain ASCII: forall, exists, ->, /\\, \\/, ~, <=.")
    if '"' in text or "(*" in text:
        raise TacticRefused("A tactic holds no string and no comment.")
    return " ".join(text.split())


def _split(text: str) -> Sequence[str]:
    """Return the sentences without their full stops; bullets and braces before a tactic are sentences."""
    return [part for piece in re.split(r"\.(?= |$)", text) for part in _bullets(piece.strip())]


def _bullets(text: str) -> Iterator[str]:
    start = num_bullets = 0
    while bullet := _BULLET.match(text, start):
        num_bullets += 1
        if num_bullets > MAX_BULLETS:
            raise TacticRefused(f"Write at most {MAX_BULLETS} bullets and braces in a row.")
        yield bullet[0]
        start = bullet.end() + (text[bullet.end() : bullet.end() + 1] == " ")  # spaces are single here
    if start < len(text):
        yield text[start:]


def _sentence(text: str, *, automation: bool) -> str:
    if _BULLET.fullmatch(text):
        return text
    if len(text) > MAX_CHARS:
        raise TacticRefused(f"The tactic has {len(text)} characters; at most {MAX_CHARS} are read.")
    if text.endswith(".") or ".." in text:
        raise TacticRefused("A tactic ends with one full stop.")
    if refused := _REFUSED.search(text):
        raise TacticRefused(f"{refused[0]} is not allowed.")
    if not automation and (search := _AUTOMATION.search(text)):
        raise TacticRefused(f"{search[0]} is not allowed here: prove it step by step.")
    selector = _SELECTOR.match(text)
    goals, tactic = (selector[1], text[selector.end() :]) if selector else ("1", text)
    if not tactic or not _is_balanced(tactic):
        raise TacticRefused("The brackets of the tactic do not match." if tactic else "Write a tactic after the goal.")
    return f"{goals}: ( {tactic} )."


def _is_balanced(text: str) -> bool:
    awaited: list[str] = []
    for letter in text:
        if letter in _OPENING:
            awaited.append(_CLOSING[_OPENING.index(letter)])
        elif letter in _CLOSING and (not awaited or awaited.pop() != letter):
            return False
    return not awaited
