"""Text that came from outside, made fit for a file."""


def well_formed(text: str) -> str:
    """Return `text` with lone surrogates, which neither UTF-8 nor a tokenizer has, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
