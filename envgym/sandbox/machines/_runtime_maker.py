"""Copies a Python, its C library and the guest into a volume; runs once in a container, from an image that has them.

Standard library only. Machines start the guest from that volume, read-only, by the copied loader: what an image or its
programs do to their own Python, libraries and loader changes nothing there. `SOURCES` is set by the host.
"""

import importlib
import os
import py_compile
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCES: Mapping[str, str] = {}
"""Module -> source, of the guest."""
TARGET = Path("/.envgym")
_PRELOAD = b"/etc/ld.so.preload"


def main() -> None:
    """Fill the volume, and say so."""
    guest, library = TARGET / "guest", TARGET / "lib"
    for module, source in SOURCES.items():
        path = guest.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"from __future__ import annotations\n{source}", encoding="utf-8")
        for folder in path.relative_to(guest).parents:
            (guest / folder / "__init__.py").touch()
    sys.path.insert(0, str(guest))
    for module in SOURCES:
        importlib.import_module(module)
    standard = Path(os.__file__).parent
    goal = library / standard.name
    shutil.copytree(standard / "encodings", goal / "encodings", ignore=shutil.ignore_patterns("__pycache__"))
    for file in [getattr(module, "__file__", None) for module in sys.modules.values()]:
        if file and Path(file).is_relative_to(standard):
            _copy(Path(file), goal / Path(file).relative_to(standard))
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mapped = {Path(line.split(maxsplit=5)[5].strip()) for line in maps if "/" in line}
    for path in mapped:
        if ".so" in path.name and not path.is_relative_to(standard):
            for name in {other.name for other in path.parent.iterdir() if other.resolve() == path.resolve()}:
                _copy(path, library / name)
            if path.name.startswith(("ld-", "ld.")):
                _copy_loader(path, library / "ld.so")
    _copy(Path(sys.executable).resolve(), TARGET / "bin" / "python3")
    for path in [*guest.rglob("*.py"), *goal.rglob("*.py")]:
        py_compile.compile(str(path), doraise=True)
    assert (library / "ld.so").is_file(), "the image has a loader of glibc"
    print("filled", flush=True)


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target)


def _copy_loader(path: Path, target: Path) -> None:
    """Copy the loader of programs, which then looks for its list of preloaded libraries where nobody can write."""
    _copy(path, target)
    replaced = f"{TARGET}/nopreload".encode()
    assert len(replaced) == len(_PRELOAD), "the place of the name in the file stays as it is"
    target.write_bytes(target.read_bytes().replace(_PRELOAD, replaced))
