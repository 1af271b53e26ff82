"""Python files that settings name by their path, with the modules beside them.

A file may import the modules and packages of its own folder, from whichever folder the program is started, at the top
of the file or inside a function. They come before installed ones of the same name, except those of the standard
library and envgym itself. Two files in different folders that import modules of one name each get their own.
"""

import ast
import builtins
import hashlib
import re
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from envgym.errors import InvalidInput, UnknownName, near_names, suggestion

FILE_MODULE = "envgym_plugin_"
"""How the name of a module from a file begins."""
_RESERVED = frozenset({*sys.stdlib_module_names, "envgym"})
_import_lock = threading.RLock()
_neighbours: dict[Path, dict[str, ModuleType]] = defaultdict(dict)
"""Folder -> modules of it that its files have imported, by name."""

_running: dict[str, Path | None] = {}
"""Module that is being imported -> its folder."""


def import_file(file: Path) -> ModuleType:
    """Import a file, once for each content that it has had.

    The name of the module is derived from path and content, so that what was made before the file changed keeps its
    classes, to pickle too.

    Raises: ImportError: there is no such file. Whatever its code raises.
    """
    resolved = file.expanduser().resolve()
    if not resolved.is_file():
        near = near_names(file.name, [path.name for path in resolved.parent.glob("*.py")])
        raise ImportError(f"no file {file}" + (f", but {' and '.join(near)}" if near else ""))
    source = resolved.read_bytes()
    digest = hashlib.sha256(b"%s\0%s" % (str(resolved).encode(), source)).hexdigest()[:12]
    name = f"{FILE_MODULE}{re.sub(r'[^A-Za-z0-9]', '_', resolved.stem)}_{digest}"
    with _import_lock:
        if name in sys.modules:
            return sys.modules[name]
        _drop_changed(resolved.parent)
        loader = SourceFileLoader(name, str(resolved))
        spec = spec_from_loader(name, loader)
        assert spec is not None, "there is a loader"
        module = sys.modules[name] = module_from_spec(spec)
        module.__dict__["__builtins__"] = _builtins_for(resolved.parent)
        try:  # of what was read: compiled files in a cache are told apart by whole seconds
            exec(loader.source_to_code(source, str(resolved)), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
        return module


class NoSuchClass(UnknownName):
    """A class that its module lacks."""

    def __init__(self, place: str, name: str, remedy: str) -> None:
        self.reason, self.remedy = f"{place} has no class {name}", remedy
        super().__init__(f"{place} must have a class {name}; {remedy}{'' if remedy.endswith('?') else '.'}")


def read_attribute(module: ModuleType, dotted: str, *, place: str) -> Any:  # whatever stands there
    """Return the class or function that a module, or a class of it, has under a name with dots.

    Raises: NoSuchClass: it has none; near names are listed.
    """
    value: Any = module
    for name in dotted.split("."):
        if not hasattr(value, name):
            raise NoSuchClass(place, dotted, suggest_class(value, name))
        value = getattr(value, name)
    return value


def suggest_class(holder: object, name: str) -> str:
    """Return the remedy for a class or function that a module lacks."""
    classes = [key for key, item in vars(holder).items() if isinstance(item, type | FunctionType) and key[0] != "_"]
    own = [key for key in classes if getattr(vars(holder)[key], "__module__", "") == getattr(holder, "__name__", "")]
    text = suggestion(name, own or classes)
    return text or "define the class there"


def broken_code(name: str, error: Exception) -> InvalidInput:
    """Return the error of code that raised while it was imported.

    Args:
        name: Of what the code is.
        error: What it raised.
    """
    if isinstance(error, SyntaxError):
        file, line, reason = error.filename, error.lineno, error.msg
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file, line, reason = frame.filename, frame.lineno, str(error)
    got = f"{type(error).__name__}: {reason}"
    return InvalidInput.of(f"the code of {name}", "be importable", got, where=f"{file}, line {line}", do="fix it")


def check_class_is_named(name: str) -> None:
    """See that a file is named together with a class. Raises: InvalidInput: only the file is."""
    file = name.rstrip(":")
    if not file.endswith(".py"):
        file = f"{file}.py" if "/" not in file and Path(f"{file}.py").is_file() else ""
    if file:
        do = f"name its class too, such as {file}:{_first_class(Path(file))}"
        raise InvalidInput.of("class of a file", "be named after a colon", name, where="path/to/file.py:Class", do=do)


def _first_class(file: Path) -> str:
    """Return the name of the first class of a file that extends a class, else one made of the name of the file."""
    try:
        body = ast.parse(file.expanduser().read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        body = []
    names = (node.name for node in body if isinstance(node, ast.ClassDef) and node.bases and node.name[0] != "_")
    return next(names, file.stem.title().replace("_", ""))


def _builtins_for(folder: Path) -> dict[str, Any]:  # Python's own
    """Return the builtins of a module in a folder, whose import statements look there first."""
    return {**vars(builtins), "__import__": partial(_import_beside, folder)}


def _import_beside(
    folder: Path,
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Run an import statement of a module in `folder`; the arguments are those of `__import__`."""
    package = str((globals or {}).get("__package__") or "")
    top = (package if level else name).partition(".")[0]
    if not _stands_in(folder, top):
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    with _import_lock, _installed(folder, top):
        return builtins.__import__(name, globals, locals, fromlist or (), level)


def _stands_in(folder: Path, top: str) -> bool:
    if not top or top in _RESERVED:
        return False
    return (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()


@contextmanager
def _installed(folder: Path, top: str) -> Iterator[None]:
    """Let `top` be the module of a folder for one import.

    Afterwards it is what it was before. If nothing else has the name, the module of the folder keeps it, for pickle.
    """
    if _running.get(top) == folder:  # an import inside the module itself
        yield
        return
    outer, _running[top] = _running.get(top), folder
    own = _neighbours[folder]
    others = {name: module for name, module in sys.modules.items() if _is_of(name, top) and own.get(name) is not module}
    for name in others:
        del sys.modules[name]
    sys.modules.update({name: module for name, module in own.items() if _is_of(name, top)})
    finder = _FolderFinder(folder, top)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        is_hidden = bool(others) or _is_elsewhere(top)
        for name in [name for name in sys.modules if _is_of(name, top)]:
            own[name] = sys.modules[name]
            if is_hidden:
                del sys.modules[name]
        sys.modules.update(others)
        _running[top] = outer


def _is_elsewhere(top: str) -> bool:
    try:
        return PathFinder.find_spec(top) is not None
    except (ImportError, ValueError):
        return True


def _is_of(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}.")


class _FolderFinder(MetaPathFinder):
    def __init__(self, folder: Path, top: str) -> None:
        self._folder, self._top = folder, top

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _is_of(fullname, self._top):
            return None
        spec = PathFinder.find_spec(fullname, [str(self._folder)] if path is None else path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _NeighbourLoader(spec.loader.name, spec.loader.path, self._folder)
        return spec


class _NeighbourLoader(SourceFileLoader):
    """Loads a module whose import statements look into the folder, too."""

    def __init__(self, name: str, path: str, folder: Path) -> None:
        super().__init__(name, path)
        self._folder = folder

    def exec_module(self, module: ModuleType) -> None:
        """Run the code of the module, of its source: compiled files in a cache are told apart by whole seconds."""
        source = self.get_data(self.path)
        module.__dict__["__builtins__"] = _builtins_for(self._folder)
        module.__dict__[_CONTENT] = hashlib.sha256(source).digest()
        exec(self.source_to_code(source, self.path), module.__dict__)


_CONTENT = "__envgym_content__"


def _drop_changed(folder: Path) -> None:
    """Forget the modules of a folder if one has changed, so that a file that has changed imports them anew."""
    own = _neighbours[folder]
    if all(_is_current(module) for module in own.values()):
        return
    for name in own:
        if sys.modules.get(name) is own[name]:
            del sys.modules[name]
    own.clear()


def _is_current(module: ModuleType) -> bool:
    content, file = module.__dict__.get(_CONTENT), getattr(module, "__file__", None)
    if content is None or file is None:
        return True
    try:
        return bool(hashlib.sha256(Path(file).read_bytes()).digest() == content)
    except OSError:
        return False
