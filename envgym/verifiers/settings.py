"""Verifiers from settings: a name of the table, an import path or a file, and what it takes.

Functions that find the answer in a text go by name (`extract: boxed`). A judge is a party, and a verifier may wrap
another one: both are a name with settings of their own.
"""

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Final, get_args

from pydantic import Field, ValidationError, create_model

from envgym.config.plugins import Choice
from envgym.config.settings import Settings, build_settings, faults
from envgym.errors import SettingsError, check_known
from envgym.party import PARTY, Party
from envgym.verifiers.base import VERIFIER, Verifier
from envgym.verifiers.extract import Extractor, Tagged, after_hashes, answer_line, boxed, final, last_line, whole_answer

EXTRACTORS: Final[Mapping[str, Extractor]] = MappingProxyType(
    {
        "after_hashes": after_hashes,
        "answer_line": answer_line,
        "boxed": boxed,
        "final": final,
        "last_line": last_line,
        "tagged": Tagged(),
        "whole_answer": whole_answer,
    }
)
"""Name in settings -> where the answer stands in a text."""
_MARKS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "after_hashes": ("#### ", ""),
        "answer_line": ("Answer: ", ""),
        "boxed": ("\\boxed{", "}"),
        "tagged": ("<answer>", "</answer>"),
    }
)
"""Name of an extractor -> what stands before and after an answer that it finds; the others find a bare one."""


def read_verifier(settings: object, *, where: str) -> Verifier:
    """Make the verifier that settings name.

    Args:
        settings: a name, or a mapping with a name and the settings of the verifier.
        where: names the settings in errors.

    Raises: UnknownName: no such verifier, setting or extractor. SettingsError: a value that the verifier refuses.
    """
    choice = _read_choice(settings, where)
    plugin = VERIFIER.load(choice.name, where=where)
    if not VERIFIER.is_called(plugin):
        return VERIFIER.build(choice, where=where)
    place = f"verifier {choice.name}"
    values = _read_arguments(plugin, choice.settings, place)
    return VERIFIER.build(Choice(name=choice.name, **values), where=where)


def mark_answer(verifier: Verifier, answer: str) -> str:
    """Return an answer with the marks between which a verifier looks for it."""
    extract = getattr(verifier, "extract", None)
    if extract is None and hasattr(verifier, "verifier"):  # it wraps another one
        return mark_answer(verifier.verifier, answer)
    name = next((name for name, extractor in EXTRACTORS.items() if extractor == extract), "")
    before, after = _MARKS.get(name, ("", ""))
    return f"{before}{answer}{after}"


def _read_choice(settings: object, where: str) -> Choice:
    named = {"name": settings} if isinstance(settings, str) else settings
    if not isinstance(named, Mapping):
        do = "write a name, or {name: ..., and its settings}"
        raise SettingsError.of("plug-in", "be a name, or a mapping with a name", settings, where=where, do=do)
    return build_settings(Choice, named, where=where)


def _read_arguments(plugin: Callable[..., object], settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return settings as the arguments of a verifier's class. Raises: as `read_verifier`."""
    parameters = inspect.signature(plugin, eval_str=True).parameters
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    missing = (name for name, item in parameters.items() if item.default is item.empty and name not in settings)
    if not takes_any and (name := next(missing, None)) is not None:
        raise SettingsError.of(name, "be set", "nothing", where=where, do=f"add {name} to its settings")
    values: dict[str, Any] = {}
    plain: dict[str, Any] = {}  # annotations
    for name, value in settings.items():
        if name not in parameters and not takes_any:
            check_known("setting", name, parameters, where=where)
        annotation = parameters[name].annotation if name in parameters else Any
        place = f"{name} of {where}"
        if annotation == Extractor:
            check_known(name, str(value), EXTRACTORS, where=where)
            value = EXTRACTORS[value]
        elif annotation == Party:
            value = PARTY.build(_read_choice(value, place), where=place)
        elif annotation == Verifier:
            value = read_verifier(value, where=place)
        elif _is_plain(annotation):
            plain[name] = annotation
        values[name] = value
    return values | _read_plain(plain, values, where)


def _is_plain(annotation: Any) -> bool:  # any type expression
    """Return whether values of a type are numbers, texts, flags, or lists of them."""
    parts = [part for part in get_args(annotation) if part is not Ellipsis]
    if parts:
        return all(map(_is_plain, parts))
    return annotation in (bool, int, float, str, NoneType) or (
        isinstance(annotation, type) and issubclass(annotation, Enum)
    )


def _read_plain(annotations: Mapping[str, Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values as their annotations have them. Raises: SettingsError: one does not fit."""
    names = {f"value_{number}": name for number, name in enumerate(annotations)}
    fields: dict[str, Any] = {
        field: (Annotated[annotations[name], Field(alias=name)], ...) for field, name in names.items()
    }
    model = create_model("VerifierSettings", __base__=Settings, **fields)
    try:
        checked = model.model_validate({name: values[name] for name in annotations})
    except ValidationError as error:
        raise SettingsError("\n".join(faults(model, error, where=where))) from None
    return {name: getattr(checked, field) for field, name in names.items()}
