"""The error tree, and the one way a sentence for a person is built.

EnvgymError
|-- InvalidInput (ValueError)        the caller handed over something that breaks a rule
|   |-- UnknownName                  no such env, model, key, split, tool ...; near names are listed
|   |-- SettingsError                a settings file or an override
|   `-- RunError                     a run directory: missing, of another config, of a newer schema
|-- ResetNeeded (RuntimeError)       step or fork on an env that has no running episode
|-- ForkUnsupported (RuntimeError)   the env declares ForkCapability.NONE, or a replay disagreed
|-- ToolError                        a tool refused the call: shown to the policy as an observation
`-- InfrastructureError              not the policy's fault: recorded as an invalid reward, never as 0
    |-- EnvFailure                   the world or its verifier broke       -> ERROR_ENV
    |-- ToolInfraFailure             a sandbox or service behind a tool    -> ERROR_TOOL_INFRA
    |-- PolicyFailure                the sampling engine or endpoint       -> ERROR_POLICY
    `-- PartyFailure                 a simulated user, opponent or judge   -> ERROR_PARTY
"""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Self

_SHOWN = 200
_SHORT_TABLE = 12
_CUTOFF_SHORT, _CUTOFF = 0.66, 0.6
"""Least similarity of a near name, from 0 to 1, in a listed table of at most `_SHORT_TABLE` names and in others."""


class EnvgymError(Exception):
    """Root of every error raised on purpose; `of` and `unless` take the parts of its sentence, as `sentence` does."""

    @classmethod
    def of(cls, what: str, must: str, got: object, *, where: str, do: str) -> Self:
        """Build the error of one sentence."""
        return cls(sentence(what, must, got, where=where, do=do))

    @classmethod
    def unless(cls, holds: object, what: str, must: str, got: object, *, where: str, do: str) -> None:
        """Raise the error of one sentence, unless the rule holds."""
        if not holds:
            raise cls.of(what, must, got, where=where, do=do)


class InvalidInput(EnvgymError, ValueError):
    """A value handed over by the caller breaks a rule."""


class UnknownName(InvalidInput):
    """A name that is not in its table."""


class SettingsError(InvalidInput):
    """A settings file or an override that cannot be accepted."""


class RunError(InvalidInput):
    """A run directory that cannot be read, resumed or written."""


class ResetNeeded(EnvgymError, RuntimeError):
    """The env has no running episode."""


class ForkUnsupported(EnvgymError, RuntimeError):
    """The env cannot be forked, or its replay disagreed with the record."""


class ToolError(EnvgymError):
    """A tool refused the call; its message is the observation the policy gets."""


class InfrastructureError(EnvgymError):
    """Something other than the policy failed; the reward of the episode is invalid."""


class EnvFailure(InfrastructureError):
    """The environment or its verifier failed."""


class ToolInfraFailure(InfrastructureError):
    """A sandbox or a service behind a tool failed."""


class PolicyFailure(InfrastructureError):
    """The sampling engine or endpoint failed."""


class PartyFailure(InfrastructureError):
    """A simulated user, opponent or judge failed."""


def sentence(what: str, must: str, got: object, *, where: str, do: str) -> str:
    """Build '<what> must <must>, got <got> (<where>); <do>.' with `got` on one line, shortened to a readable length.

    A question in `do` ends with its own mark, without a full stop behind it.
    """
    text = " ".join((got if isinstance(got, str) else repr(got)).splitlines())
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}... ({len(text)} characters)"
    return f"{what} must {must}, got {text} ({where}); {do}{'' if do.endswith('?') else '.'}"


def near_names(name: str, names: Iterable[str], *, limit: int = 3, can_list: bool = False) -> list[str]:
    """Return up to `limit` known names that look like `name`, nearest first.

    Args:
        name: the unknown name.
        names: the table of names.
        limit: most names to return.
        can_list: whether the sentence lists the table if no name is near. Of a short table only very similar names are
            then returned, because a weak guess would hide the right name.
    """
    lowered = {candidate.lower(): candidate for candidate in names}
    cutoff = _CUTOFF_SHORT if can_list and len(lowered) <= _SHORT_TABLE else _CUTOFF
    return [lowered[hit] for hit in get_close_matches(name.lower(), lowered, n=limit, cutoff=cutoff)]


def suggestion(name: str, names: Iterable[str], *, otherwise: str = "") -> str:
    """Return the remedy for an unknown name: near names, else `otherwise`, else the table; empty if it has no name."""
    ordered = sorted(names)
    near = near_names(name, ordered, can_list=True)
    if near:
        return "did you mean " + " or ".join(near) + "?"
    table = f"choose one of: {', '.join(ordered[:20])}" + (" ..." if len(ordered) > 20 else "") if ordered else ""
    return otherwise or table


def unknown_name(kind: str, name: str, names: Iterable[str], *, where: str, remedy: str = "") -> UnknownName:
    """Build the error for a name that is not in its table, with near names, or else the remedy or the whole table."""
    do = suggestion(name, names, otherwise=remedy) or f"no {kind} is registered"
    return UnknownName.of(kind, "be a known name", repr(name), where=where, do=do)


def check_known(kind: str, name: str, names: Collection[str], *, where: str, remedy: str = "") -> None:
    """See that a name is in its table. Raises: UnknownName: near names are listed, or else the remedy or the table."""
    if name not in names:
        raise unknown_name(kind, name, names, where=where, remedy=remedy)
