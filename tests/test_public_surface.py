"""Public names and their signatures, frozen in a data file, so that every change of them is seen in review.

Public are the names in `__all__` of a package, and what a module defines that a page of the documentation imports from.
`ENVGYM_WRITE_GOLDEN=1` writes the file anew, after a change that is meant.
"""

import enum
import functools
import inspect
import json
import os
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import envgym

ROOT = Path(__file__).resolve().parent.parent
SURFACE = Path(__file__).parent / "golden" / "public_surface.json"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_IMPORT = re.compile(r"^(?:from (envgym\.[\w.]+) import|import (envgym\.[\w.]+))", re.MULTILINE)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def packages() -> list[str]:
    """Return the public packages, the environments left out: they are made by id."""
    found = ["envgym"]
    for item in pkgutil.walk_packages(envgym.__path__, "envgym."):
        is_private = any(part.startswith("_") for part in item.name.split("."))
        if item.ispkg and not is_private and not item.name.startswith("envgym.envs"):
            found.append(item.name)
    return found


def documented_modules() -> list[str]:
    return sorted({match[1] or match[2] for page in PAGES for match in _IMPORT.finditer(page.read_text())})


def is_defined_here(value: object, module: ModuleType) -> bool:
    return (inspect.isclass(value) or inspect.isroutine(value)) and value.__module__ == module.__name__


def public_names(module: ModuleType) -> list[str]:
    """Return the names of a module's `__all__`, or else the classes and functions that it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name for name, value in vars(module).items() if not name.startswith("_") and is_defined_here(value, module)
    )


def signature_of(value: object) -> str:
    """Return a signature as text, without memory addresses; empty where there is none."""
    try:
        return _ADDRESS.sub("", str(inspect.signature(value)))  # type: ignore[arg-type]  # anything may be callable
    except (TypeError, ValueError):
        return ""


def members(cls: type) -> Iterator[tuple[str, object]]:
    """Yield the public attributes that a class, or a class of ours above it, defines."""
    ours = [base for base in reversed(cls.__mro__) if base.__module__.startswith("envgym")]
    yield from sorted(
        {name: value for base in ours for name, value in vars(base).items() if not name.startswith("_")}.items()
    )


def describe(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield a name, and the public members of a class, each with its signature."""
    if not inspect.isclass(value):
        yield path, signature_of(value) if inspect.isroutine(value) else type(value).__name__
        return
    if issubclass(value, enum.Enum):
        yield path, f"enum {[member.value for member in value]}"
        return
    if issubclass(value, BaseException):
        yield path, f"exception, {', '.join(base.__name__ for base in value.__bases__)}"
    elif getattr(value, "_is_protocol", False):
        yield path, "protocol"
    else:
        yield path, f"class{signature_of(value)}"
    for name, member in members(value):
        if isinstance(member, property | functools.cached_property):
            yield f"{path}.{name}", "property"
        elif isinstance(member, staticmethod | classmethod):
            yield f"{path}.{name}", f"{type(member).__name__} {signature_of(member.__func__)}"
        elif inspect.isfunction(member):
            yield f"{path}.{name}", signature_of(member)


def surface() -> dict[str, str]:
    """Return public name -> signature; a name that is defined in another module points there."""
    found: dict[str, str] = {}
    for module_name in sorted({*packages(), *documented_modules()}):
        module = import_module(module_name)
        if module_name in packages() and not hasattr(module, "__all__"):
            continue
        for name in public_names(module):
            value = getattr(module, name)
            path = home = f"{module_name}.{name}"
            if inspect.isclass(value) or inspect.isroutine(value):
                home = f"{value.__module__}.{value.__qualname__}"
            if home != path:
                found[path] = f"= {home}"
            found.update(describe(home, value))
    return dict(sorted(found.items()))


@pytest.mark.parametrize("name", packages())
def test_a_package_that_exports_names_lists_them_all(name: str) -> None:
    module = import_module(name)
    names = {
        bound for bound, value in vars(module).items() if not bound.startswith("_") and not inspect.ismodule(value)
    }
    assert hasattr(module, "__all__") or not names, f"{name} must state __all__, it binds {sorted(names)}"
    missing = [public for public in getattr(module, "__all__", ()) if not hasattr(module, public)]
    assert not missing, f"{name}.__all__ must name what the package has, got {missing}"


def test_public_names_and_signatures_are_the_frozen_ones() -> None:
    found = surface()
    if os.environ.get("ENVGYM_WRITE_GOLDEN") == "1":
        SURFACE.parent.mkdir(exist_ok=True)
        SURFACE.write_text(json.dumps(found, indent=1) + "\n")
    frozen = json.loads(SURFACE.read_text())
    changed = {name for name in found.keys() | frozen.keys() if found.get(name) != frozen.get(name)}
    report = [f"{name}: {frozen.get(name)} -> {found.get(name)}" for name in sorted(changed)]
    assert not report, "the public surface must stay, or be written anew (see the head of this file):\n" + "\n".join(
        report
    )
