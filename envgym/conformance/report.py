"""What a check says."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """How a check went."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"
    """It could not be made; the detail says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    status: CheckStatus
    detail: str
    """What was seen, what is wrong, or why it could not be checked."""
    seconds: float


class CheckFailed(Exception):  # an outcome of a check, not an error of the program
    """The env breaks the rule; the message says how."""


class CheckSkipped(Exception):  # likewise
    """The rule cannot be checked on this env; the message says why."""


def is_passed(checks: Sequence[Check]) -> bool:
    """Tell whether no check failed."""
    return all(check.status is not CheckStatus.FAIL for check in checks)


def as_text(title: str, checks: Sequence[Check]) -> str:
    """Write the results for a person: one line per check, then what could not be checked."""
    width = max((len(check.name) for check in checks), default=0)
    lines = [title]
    lines += [f"  {check.status}  {check.name:<{width}}  {check.seconds:5.2f} s  {check.detail}" for check in checks]
    counts = {status: sum(check.status is status for check in checks) for status in CheckStatus}
    skipped = [check.name for check in checks if check.status is CheckStatus.SKIP]
    passed, failed, unchecked = (counts[status] for status in (CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.SKIP))
    lines.append(f"  {passed} passed, {failed} failed, {unchecked} not checked")
    if skipped:
        lines.append(f"  not checked: {', '.join(skipped)}")
    return "\n".join(lines)
