"""Reasoning between `<think>` and `</think>`, kept apart from what is said; shared by all formats."""

OPEN, CLOSE = "<think>", "</think>"


def split_thinking(text: str) -> tuple[str | None, str]:
    """Return (thinking or None, the rest of the text).

    The opening tag may be missing, as many templates write it into the prompt. Thinking that never closes takes the
    whole text: nothing was said yet. Without a tag the text is returned untouched, else both parts are stripped.
    """
    start = text.lstrip()
    if start.startswith(OPEN):
        thinking, closed, rest = start[len(OPEN) :].partition(CLOSE)
        return thinking.strip() or None, rest.strip() if closed else ""
    before, closed, rest = text.partition(CLOSE)
    if closed and OPEN not in before:
        return before.strip() or None, rest.strip()
    return None, text


def join_thinking(thinking: str | None, rest: str) -> str:
    """Write what `split_thinking` reads; an empty block keeps tags inside the rest from being taken for thinking."""
    if thinking is None and OPEN not in rest and CLOSE not in rest:
        return rest
    return f"{OPEN}\n{thinking or ''}\n{CLOSE}\n\n{rest}"
