"""Breaks text into lines."""


def wrap(text, width, first="", rest=None):
    """Return lines of at most `width` characters; a word that is longer than a line is broken.

    The first line begins with `first`, the others with `rest` (spaces of the same length, unless given).
    """
    rest = " " * len(first) if rest is None else rest
    if width <= max(len(first), len(rest)):
        raise ValueError("width must leave room for a character")
    lines = []
    line, is_empty = first, True
    for word in text.split():
        while word:
            room = width - len(line) - (0 if is_empty else 1)
            if len(word) <= room:
                line += word if is_empty else f" {word}"
                is_empty, word = False, ""
            elif is_empty:
                lines.append(line + word[:room])
                line, word = rest, word[room:]
            else:
                lines.append(line)
                line, is_empty = rest, True
    if not is_empty or not lines:
        lines.append(line)
    return lines
