"""Log of the errors in an author's code: the traceback of each distinct one once, then how often it came again.

An error in an environment, a tool or a reward never stops a run: it becomes an invalid reward, or an answer to the
agent. The log is where its author sees the file and the line.
"""

import logging
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from envgym.core.json_types import visible
from envgym.errors import EnvFailure, InfrastructureError

_log = logging.getLogger(__name__)
_counts: Counter[tuple[object, ...]] = Counter()
"""How often each distinct error was raised: its type, and the lines that led to it."""
_lock = threading.Lock()


@dataclass(slots=True, eq=False)
class HeldErrors:
    """Errors that were kept out of the log."""

    count: int = 0
    texts: dict[tuple[object, ...], str] = field(default_factory=dict)
    """What the log would have shown of each distinct one: context and traceback."""

    def log(self) -> None:
        """Log those that are new after all."""
        for key, text in self.texts.items():
            with _lock:
                _counts[key] += 1
                is_new = _counts[key] == 1
            if is_new:
                _log.error("%s", text)


_holding: list[HeldErrors] = []
"""Of the blocks that keep errors out of the log, the innermost last."""
_NUM_LINES = 20
"""Of the lines that led to an error, the innermost that tell it from others."""


def log_error(error: BaseException, context: str) -> None:
    """Log the traceback of `error` when it is new; the same again is one line at its 10th, 100th, 1000th ... time.

    An infrastructure error is raised on purpose and says what failed: of an `EnvFailure` the cause is logged, of the
    others nothing.

    Args:
        error: as it was caught; its traceback begins there.
        context: what failed and what became of it, as one clause.
    """
    if isinstance(error, InfrastructureError):
        if isinstance(error, EnvFailure) and error.__cause__ is not None:
            log_error(error.__cause__, context)
        return
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    key = (type(error), *lines[-_NUM_LINES:])
    with _lock:
        if _holding:
            errors = _holding[-1]
            errors.count += 1
            if key not in errors.texts:
                errors.texts[key] = _text(error, context)
            return
        _counts[key] += 1
        count = _counts[key]
    if count == 1:
        _log.error("%s", _text(error, context))
    elif count == 10 ** (len(str(count)) - 1):
        _log.error("%s: %s, %d times so far", visible(context), type(error).__name__, count)


def _text(error: BaseException, context: str) -> str:
    return f"{visible(context)}\n{visible(''.join(traceback.format_exception(error)).rstrip())}"


@contextmanager
def hold_errors() -> Iterator[HeldErrors]:
    """Keep the errors of a block, in all threads, out of the log."""
    errors = HeldErrors()
    with _lock:
        _holding.append(errors)
    try:
        yield errors
    finally:
        with _lock:
            _holding.remove(errors)
