"""Whether a class or a function has the methods of a protocol, judged by its signatures alone; nothing is called."""

import inspect
import typing
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Any, Union

from typing_extensions import get_protocol_members, is_protocol

_CALL = "__call__"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def misfit(plugin: object, protocols: Sequence[type]) -> str | None:
    """Return why a class, or a function in place of `__call__`, meets none of some protocols; None: it meets one.

    Args:
        plugin: a class, of which an instance is judged; or a function.
        protocols: protocols, whose methods the class must have; or base classes, of which it must be a subclass.
    """
    reasons = [_misfit(plugin, protocol) for protocol in protocols]
    return None if None in reasons else " and ".join(reason for reason in reasons if reason is not None)


def return_type(function: object) -> object:
    """Return a function's return annotation; None: it has none, or one that cannot be evaluated."""
    return _type_hints(function).get("return")


def _misfit(plugin: object, protocol: type) -> str | None:
    if not isinstance(plugin, type):
        if not is_protocol(protocol) or get_protocol_members(protocol) != {_CALL}:
            return f"a function, no {protocol.__name__}"
        return _method_misfit(_CALL, plugin, inspect.signature(plugin), protocol)  # type: ignore[arg-type]  # a routine
    if not is_protocol(protocol):
        return None if issubclass(plugin, protocol) else f"{plugin.__name__} is no subclass of {protocol.__name__}"
    if protocol in plugin.__mro__:
        return None
    for name in sorted(get_protocol_members(protocol)):
        reason = _member_misfit(name, plugin, protocol)
        if reason is not None:
            return reason
    return None


def _member_misfit(name: str, plugin: type, protocol: type) -> str | None:
    """Return how a class's member differs from the protocol's; one that is no method must be declared in the class."""
    if not inspect.isfunction(_static(protocol, name)):
        is_declared = any(name in vars(base) or name in inspect.get_annotations(base) for base in plugin.__mro__)
        return None if is_declared else f"{plugin.__name__} does not declare {name}"
    member = _static(plugin, name)
    if member is None:
        return f"{plugin.__name__} has no method {name}"
    function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    if not callable(function):
        return f"{plugin.__name__}.{name} is no method"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in another language: its signature is unknown
        return None
    if not isinstance(member, staticmethod):
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    reason = _method_misfit(name, function, signature, protocol)
    return None if reason is None else f"{plugin.__name__}.{reason}"


def _method_misfit(
    name: str, function: Callable[..., object], signature: inspect.Signature, protocol: type
) -> str | None:
    """Return how a function differs from a method of a protocol: in its arguments, by waiting, or in its result."""
    method = _static(protocol, name)
    expected_parameters = list(inspect.signature(method).parameters.values())[1:]
    for required_only in (False, True):
        parameters = [item for item in expected_parameters if not (required_only and item.default is not item.empty)]
        if not _accepts(signature, parameters):
            return f"{name} must take ({', '.join(item.name for item in expected_parameters)})"
    if inspect.iscoroutinefunction(function) != inspect.iscoroutinefunction(method):
        return f"{name} must be {'async' if inspect.iscoroutinefunction(method) else 'a plain function'}"
    for item, expected in _parameter_types(method, expected_parameters).items():
        accepted = _parameter_types(function, list(signature.parameters.values())).get(item)
        if not _is_subtype(expected, accepted):
            return f"{name} must take {expected_parameters[item].name}: {_shown(expected)}, not {_shown(accepted)}"
    returned, expected = return_type(function), return_type(method)
    if not _is_subtype(returned, expected):
        return f"{name} must return {_shown(expected)}, not {_shown(returned)}"
    return None


def _parameter_types(function: object, parameters: Sequence[inspect.Parameter]) -> dict[int, object]:
    hints = _type_hints(function)
    positional = [item for item in parameters if item.kind in _POSITIONAL]
    return {index: hints[item.name] for index, item in enumerate(positional) if item.name in hints}


def _type_hints(function: object) -> dict[str, Any]:  # type expressions
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # names that are imported for type checkers only
        return {}


def _accepts(signature: inspect.Signature, parameters: Sequence[inspect.Parameter]) -> bool:
    """Return whether calls with these parameters bind, with those that may be positional or named given either way."""
    for unnamed in (_POSITIONAL, _POSITIONAL[:1]):
        positional = [item for item in parameters if item.kind in unnamed]
        named = [item.name for item in parameters if item.kind in _NAMED and item.kind not in unnamed]
        try:
            signature.bind(*positional, **dict.fromkeys(named))
        except TypeError:
            return False
    return True


def _is_subtype(annotation: Any, expected: Any) -> bool:  # any type expressions
    """Return whether a return annotation keeps to another one; True where that cannot be told."""
    if Any in (annotation, expected) or annotation is None or expected is None:
        return True
    if typing.get_origin(annotation) in (Union, UnionType):
        return all(_is_subtype(part, expected) for part in typing.get_args(annotation))
    if typing.get_origin(expected) in (Union, UnionType):
        return any(_is_subtype(annotation, part) for part in typing.get_args(expected))
    own_class, expected_class = _class_of(annotation), _class_of(expected)
    if not (isinstance(own_class, type) and isinstance(expected_class, type)):
        return True
    if is_protocol(expected_class):
        return _misfit(own_class, expected_class) is None
    if not (issubclass(own_class, expected_class) or (own_class is int and expected_class is float)):
        return False
    parts = zip(_arguments_of(annotation), _arguments_of(expected), strict=False)
    return typing.get_origin(expected) is None or all(_is_subtype(part, other) for part, other in parts)


def _class_of(annotation: Any) -> Any:  # a class, or a type expression that is none
    """Return the class of an annotation; that of a tensor annotated with its shape is the tensor's."""
    origin = typing.get_origin(annotation) or annotation
    return getattr(origin, "array_type", origin)


def _arguments_of(annotation: Any) -> list[Any]:  # type expressions
    return [part for part in typing.get_args(annotation) if part is not ...]


def _static(owner: type, name: str) -> Any:  # a method, a property, or any other attribute
    return next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), None)


def _shown(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) and annotation is not NoneType else str(annotation)
