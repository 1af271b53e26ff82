"""Frozen records that are quick to make."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def quick_init(cls: type[T]) -> type[T]:
    """Let a frozen dataclass with slots fill each slot by its own descriptor: it is made in two thirds of the time.

    `dataclass` writes `object.__setattr__(self, name, value)` for every field, which looks the slot up by name each
    time. Signature, defaults and `__post_init__` stay as they are. Every field must be an argument.
    """
    original: Any = vars(cls)["__init__"]  # a function
    record: Any = cls  # a dataclass, which no type says
    defaults = original.__kwdefaults__ or {}
    scope: dict[str, Any] = {}  # what the body names
    body: list[str] = []
    for entry in fields(record):
        name, value = entry.name, entry.name
        scope[f"_set_{name}"] = getattr(cls, name).__set__
        if entry.default_factory is not MISSING:
            scope[f"_make_{name}"], scope["_missing"] = entry.default_factory, defaults[name]
            value = f"_make_{name}() if {name} is _missing else {name}"
        body.append(f" _set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    code = original.__code__
    positional = code.co_varnames[: code.co_argcount]
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    arguments = ", ".join((*positional, *(("*", *keywords) if keywords else ())))
    exec("\n".join((f"def __init__({arguments}):", *body)), scope)
    init: Any = wraps(original)(scope["__init__"])
    init.__defaults__, init.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    record.__init__ = init
    return cls


def quick_maker(cls: type[T]) -> Callable[..., T]:
    """Return a function that makes a frozen dataclass with slots from all its fields by position, in their order.

    It takes less time than the class. `__post_init__` is called, and defaults are not applied. The function
    fills a mutable object with the same slots, which becomes a record when it is full.
    """
    record: Any = cls  # a dataclass, which no type says
    names = [entry.name for entry in fields(record)]
    scope: dict[str, Any] = {
        "record": cls,
        "mutable": type(cls.__name__, (), {"__slots__": names}),
        "new": object.__new__,
    }
    body = [" self = new(mutable)", *(f" self.{name} = {name}" for name in names), " self.__class__ = record"]
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    exec("\n".join((f"def make({', '.join(names)}):", *body, " return self")), scope)
    make: Callable[..., T] = scope["make"]
    return make
