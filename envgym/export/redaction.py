"""The user's own function that changes texts before they are exported."""

from envgym.config.plugins import import_path
from envgym.errors import SettingsError
from envgym.export.contexts import Redact

_WHERE = "--redact"


def load_redaction(path: str) -> Redact:
    """Return the function that `file.py:function` or `module:function` names; it is called with every text.

    Raises: SettingsError: it cannot be imported, or is no function; also by the returned function, if
        the user's raises or returns something else than text.
    """
    do = "write path/to/file.py:function, or module:function"
    try:
        function = import_path(path)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise SettingsError.of(_WHERE, "name an importable function", path, where=str(error), do=do) from error
    SettingsError.unless(callable(function), _WHERE, "name a function", path, where="envgym export", do=do)

    def redact(text: str) -> str:
        try:
            redacted = function(text)
        except Exception as error:  # of the user's code, which may raise anything
            must, remedy = "return text", "correct the function"
            raise SettingsError.of(path, must, f"{type(error).__name__}: {error}", where=_WHERE, do=remedy) from error
        if not isinstance(redacted, str):
            must, remedy = "return text", "return the text to export, or an empty text"
            raise SettingsError.of(path, must, redacted, where=_WHERE, do=remedy)
        return redacted

    return redact
