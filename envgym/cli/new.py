"""`envgym new`: write the package of a new environment, in one of three shapes."""

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

SHAPES = {
    "data": "questions of a file and a reward function",
    "tools": "questions that need tools, and a reward function",
    "class": "a class with its own turns",
}
"""Name of a shape, which is the folder of its templates -> what it is."""
_FILES = {
    "pyproject.toml.tmpl": "pyproject.toml",
    "train.yaml.tmpl": "train.yaml",
    "__init__.py.tmpl": "{package}/__init__.py",
}
"""Template -> path in the new folder."""
_FILES_OF_SHAPE = {
    "README.md.tmpl": "{package}/README.md",
    "env.py.tmpl": "{package}/env.py",
    "tasks.jsonl.tmpl": "{package}/tasks.jsonl",
    "test_env.py.tmpl": "tests/test_{name}.py",
}
"""The same of the templates that lie in the folder of a shape, where it has them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("name", metavar="NAME", help="name, or namespace/name")
    shapes = "; ".join(f"{shape}: {text}" for shape, text in SHAPES.items())
    parser.add_argument("--shape", choices=tuple(SHAPES), default="class", help=f"{shapes} (default: class)")
    parser.add_argument("--into", type=Path, default=Path(), metavar="DIR", help="where to put it (default: here)")


def run(args: argparse.Namespace) -> int:
    """Write the package and say what comes next."""
    namespace, name = _names(args.name)
    folder = write_package(namespace, name, args.into, args.shape)
    cls = _class_of(name)
    echo(f"""{folder} is a package with the environment {namespace}/{name}-v0. It can be used as it is:
  cd {folder}
  envgym check {folder.name}/env.py:{cls}
  envgym train train.yaml
Once installed, it is known by its id:
  pip install -e .
  envgym check {namespace}/{name}-v0
  python -m pytest""")
    return 0


def write_package(namespace: str, name: str, into: Path, shape: str) -> Path:
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
        "cls": _class_of(name),
        "distribution": package.replace("_", "-"),
        "version": __version__,
    }
    templates = files("envgym.cli") / "templates" / "new"
    places = {templates / template: place for template, place in _FILES.items()}
    places |= {templates / shape / template: place for template, place in _FILES_OF_SHAPE.items()}
    with tempfile.TemporaryDirectory(dir=into, prefix=f".{package}-") as scratch:
        draft = Path(scratch) / package
        for template, place in places.items():
            if not template.is_file():
                continue
            path = draft / place.format(**values)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(template.read_text(encoding="utf-8")).substitute(values), encoding="utf-8")
        (draft / package / "py.typed").touch()
        shutil.move(draft, target)
    return target


def _class_of(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _as_module_name(part: str) -> str:
    """Write `my-dice`, `My dice` and `MyDice` as `my_dice`."""
    return re.sub(r"[\s-]+|(?<=[a-z0-9])(?=[A-Z])", "_", part.strip()).lower()


def _names(text: str) -> tuple[str, str]:
    """Split NAME into namespace and name, as modules are written. Raises: InvalidInput: it cannot name a package."""
    namespace, name = map(_as_module_name, text.removesuffix("-v0").rpartition("/")[::2])
    namespace = namespace or name
    version = re.search(r"-v[1-9]\d*$", text)
    if version is not None:
        do = f"leave the version out: {text[: version.start()]}"
        raise InvalidInput.of("NAME", "be of a new environment, whose version is v0", text, where="envgym new", do=do)
    for part in (namespace, name):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", part) or keyword.iskeyword(part):
            rule = "be letters, digits and underscores, begin with a letter and be no keyword"
            raise InvalidInput.of("NAME", rule, repr(text), where="envgym new", do="write e.g. my_games/dice")
    package = name if name == namespace else f"{namespace}_{name}"
    if package in sys.stdlib_module_names or package == "envgym":
        do = "choose another name"
        raise InvalidInput.of("NAME", "not be a module of Python or envgym", text, where="envgym new", do=do)
    if namespace in FAMILIES:
        do = "take a namespace of your own"
        raise InvalidInput.of("namespace", "not be a family of envgym", namespace, where="envgym new", do=do)
    return namespace, name
