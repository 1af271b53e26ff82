"""Keyword arguments of an environment's class or factory: which it takes, and whether values fit their hints."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Union, get_args, get_origin

from envgym.errors import InvalidInput, check_known

_KINDS: Mapping[object, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    Sequence: (Sequence, "a list"),
    Mapping: (Mapping, "a mapping"),
    NoneType: (NoneType, "None"),
}
"""Annotation of a keyword argument -> what fits it, and its words; arguments with any other are not checked."""


def parameters(creator: Callable[..., object]) -> dict[str, inspect.Parameter] | None:
    """Return the keyword parameters of an env's class or factory, or None where it takes any.

    A class whose `__init__` passes `**kwargs` on is read together with its bases.
    """
    makers: list[Callable[..., object]] = (
        [base.__dict__["__init__"] for base in creator.__mro__ if "__init__" in base.__dict__ and base is not object]
        if isinstance(creator, type)
        else [creator]
    )
    parameters: dict[str, inspect.Parameter] = {}
    for maker in makers:
        signature_parameters = list(inspect.signature(maker).parameters.values())
        for item in signature_parameters[1:] if isinstance(creator, type) else signature_parameters:
            if item.kind in (item.KEYWORD_ONLY, item.POSITIONAL_OR_KEYWORD):
                parameters.setdefault(item.name, item)
        if not any(item.kind is item.VAR_KEYWORD for item in signature_parameters):
            return parameters
    return None


def check_kwargs(env_id: str, accepted: Mapping[str, inspect.Parameter] | None, kwargs: Mapping[str, object]) -> None:
    """Check keyword arguments against what the class or function takes; None: it takes any.

    Raises: UnknownName: there is no such argument. InvalidInput: one is missing, or of another kind than its hint.
    """
    if accepted is None:
        return
    for name, value in kwargs.items():
        check_known("keyword argument", name, accepted, where=env_id)
        _check_kind(accepted[name], value, env_id)
    missing = [name for name, item in accepted.items() if item.default is item.empty and name not in kwargs]
    if missing:
        must, do = f"be given {', '.join(missing)}", "pass the keyword arguments"
        raise InvalidInput.of(env_id, must, sorted(kwargs), where="make", do=do)


def read_bounds(name: str, value: object, *, where: str) -> tuple[float, float]:
    """Return bounds that a user gives as a list of two numbers, the lower one first. Raises: InvalidInput."""
    numbers = [*value] if isinstance(value, Sequence) and not isinstance(value, str) else []
    is_numeric = all(isinstance(number, Real) and not isinstance(number, bool) for number in numbers)
    if not (is_numeric and len(numbers) == 2 and numbers[0] <= numbers[1]):
        must, do = "be two numbers, the lower one first", f"pass e.g. {name}=[0, 1]"
        raise InvalidInput.of(name, must, repr(value), where=where, do=do)
    return float(numbers[0]), float(numbers[1])


def _check_kind(item: inspect.Parameter, value: object, where: str) -> None:
    """Refuse a value of another kind than the annotation's, such as the text "no" for a bool. Raises: InvalidInput."""
    is_union = isinstance(item.annotation, UnionType) or get_origin(item.annotation) is Union
    parts = get_args(item.annotation) if is_union else (item.annotation,)
    kinds = [_KINDS.get(get_origin(part) or part) for part in parts]
    expected = [kind for kind in kinds if kind is not None]
    fits = (isinstance(value, kind) and isinstance(value, bool) <= (kind is bool) for kind, _ in expected)
    if len(expected) == len(kinds) and not any(fits):
        must = f"be {' or '.join(words for _, words in expected)}"
        do = f"pass e.g. {item.name}={item.default}" if item.default is not item.empty else "correct it"
        raise InvalidInput.of(item.name, must, repr(value), where=where, do=do)
