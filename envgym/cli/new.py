"""`envgym new`: write the package of a new environment."""

import argparse
import keyword
import re
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from string import Template

from envgym import __version__
from envgym.cli.common import echo
from envgym.errors import InvalidInput
from envgym.registry import FAMILIES

_FILES = {
    "pyproject.toml.tmpl": "pyproject.toml",
    "README.md.tmpl": "{package}/README.md",
    "__init__.py.tmpl": "{package}/__init__.py",
    "env.py.tmpl": "{package}/env.py",
    "test_env.py.tmpl": "tests/test_{name}.py",
}
"""Template -> path in the new folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("name", metavar="NAME", help="name, or namespace/name, in lower case with underscores")
    parser.add_argument("--into", type=Path, default=Path(), metavar="DIR", help="where to put it (default: here)")


def run(args: argparse.Namespace) -> int:
    """Write the package and say what comes next."""
    namespace, name = _names(args.name)
    folder = write_package(namespace, name, args.into)
    echo(f"""{folder} is a package with the environment {namespace}/{name}-v0. Next:
  pip install -e {folder}
  envgym check {namespace}/{name}-v0
  python -m pytest {folder}""")
    return 0


def write_package(namespace: str, name: str, into: Path) -> Path:
    """Write the package into a new folder of `into`, whole or not at all, and return the folder.

    Raises: InvalidInput: the folder is there already, or `into` is not.
    """
    package = name if name == namespace else f"{namespace}_{name}"
    target = into / package
    if target.exists():
        do = "choose another name or --into another folder"
        raise InvalidInput.of("folder", "not exist yet", str(target), where="envgym new", do=do)
    InvalidInput.unless(into.is_dir(), "--into", "be a folder", str(into), where="envgym new", do="create it first")
    values = {
        "id": f"{namespace}/{name}-v0",
        "name": name,
        "package": package,
        "cls": "".join(part.capitalize() for part in name.split("_")),
        "distribution": package.replace("_", "-"),
        "version": __version__,
    }
    with tempfile.TemporaryDirectory(dir=into, prefix=f".{package}-") as scratch:
        draft = Path(scratch) / package
        for template, place in _FILES.items():
            path = draft / place.format(**values)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = (files("envgym.cli") / "templates" / "new" / template).read_text(encoding="utf-8")
            path.write_text(Template(text).substitute(values), encoding="utf-8")
        (draft / package / "py.typed").touch()
        shutil.move(draft, target)
    return target


def _names(given: str) -> tuple[str, str]:
    """Split NAME into namespace and name. Raises: InvalidInput: it cannot name a package."""
    namespace, _, name = given.rpartition("/")
    namespace = namespace or name
    for part in (namespace, name):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", part) or keyword.iskeyword(part):
            rule = "be lower-case letters, digits and underscores, not a keyword"
            bare = re.sub(r"-v\d+$", "", given)
            do = "write e.g. my_games/dice" if bare == given else f"leave the version out: {bare}; v0 is added"
            raise InvalidInput.of("NAME", rule, repr(given), where="envgym new", do=do)
    package = name if name == namespace else f"{namespace}_{name}"
    if package in sys.stdlib_module_names or package == "envgym":
        do = "choose another name"
        raise InvalidInput.of("NAME", "not be a module of Python or envgym", given, where="envgym new", do=do)
    if namespace in FAMILIES:
        do = "take a namespace of your own"
        raise InvalidInput.of("namespace", "not be a family of envgym", namespace, where="envgym new", do=do)
    return namespace, name
