"""Build the wheel by way of the source archive, install it alone in a new environment, and use it from elsewhere.

Proves that a user who installs envgym gets the four rooms, the command and every data file, though three of the rooms
are links in the source tree. Nothing is downloaded: third-party packages are seen from the environment that runs this.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "envgym", "envgym_verifiers", "envs", "agents", "trainer")
_USE = """
import pathlib, sys
import envgym, envgym.agents, envgym.envs, envgym.trainer
where = pathlib.Path(envgym.__file__)
assert where.is_relative_to(sys.prefix), f"envgym must come from the wheel, got {where}"
"""


def main() -> None:
    """Build, install, import, list."""
    with tempfile.TemporaryDirectory(prefix="envgym-wheel-") as name:
        folder = Path(name)
        _copy_sources(folder / "source")
        wheel = _build(folder / "source", folder / "dist")
        _check_files(wheel, folder / "source")
        python = _install(wheel, folder / "venv")
        _call(folder, python, "-W", "error", "-c", _USE)
        ids = json.loads(_call(folder, python.with_name("envgym"), "list", "--json"))
        print(f"wheel smoke test: {wheel.name} installs, imports and lists {len(ids)} environments")


def _copy_sources(source: Path) -> None:
    source.mkdir()
    for entry in _SOURCES:
        if (ROOT / entry).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / entry, source / entry, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / entry, source / entry)


def _build(source: Path, target: Path) -> Path:
    _call(source, Path(sys.executable), "-m", "build", "--no-isolation", "--outdir", target)
    (wheel,) = target.glob("*.whl")
    return wheel


def _check_files(wheel: Path, source: Path) -> None:
    """Refuse a wheel that lacks a file of the packages, with the rooms read through the links."""
    expected = {
        (Path(folder) / file).relative_to(source).as_posix()
        for package in ("envgym", "envgym_verifiers")
        for folder, _, files in os.walk(source / package, followlinks=True)
        for file in files
    }
    if missing := sorted(expected - set(zipfile.ZipFile(wheel).namelist())):
        sys.exit(f"the wheel must hold every file of the packages, lacks {missing}; see pyproject.toml.")


def _install(wheel: Path, environment: Path) -> Path:
    """Return the Python of a new environment that has the wheel and sees this environment's other packages."""
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    pip = ("-m", "pip", "--python", python, "--disable-pip-version-check", "install")
    _call(environment, Path(sys.executable), *pip, "--quiet", "--no-deps", "--no-index", wheel)
    (packages,) = environment.glob("lib/python*/site-packages")
    # A plain path line: the editable install of this tree, itself a .pth file in there, is not followed.
    (packages / "_others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _call(folder: Path, *command: Path | str) -> str:
    result = subprocess.run(
        command, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))} must exit with 0, got {result.returncode}:\n{result.stdout}")
    return result.stdout


if __name__ == "__main__":
    main()
