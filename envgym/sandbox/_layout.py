"""What a sandboxed program sees of the machine: system programs, one Python, an empty directory, and no more."""

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from glob import glob

from envgym.sandbox._launcher_client import Argument, Root

WORK = "/tmp"
"""The working directory: home, temporary files, the only place that can be written."""
PYTHON = os.path.join(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
"""The interpreter as programs in the sandbox find it: this one's base, without what was installed into it."""
PATH = os.pathsep.join(dict.fromkeys([os.path.dirname(PYTHON), "/usr/local/bin", "/usr/bin", "/bin"]))
USER = "1000"
_ENVIRONMENT = {"PATH": PATH, "HOME": WORK, "TMPDIR": WORK, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
_INSTALLED = (
    "{prefix}/lib/python3*/site-packages",
    "/usr/lib/python3*/dist-packages",
    "/usr/local/lib/python3*/*-packages",
)


@cache
def bound_directories() -> tuple[str, ...]:
    """Return the directories outside /usr that programs need: the interpreter's own."""
    return () if _is_below(sys.base_prefix, "/usr") else (sys.base_prefix,)


def root_of(others: Mapping[str, str]) -> Root:
    """Return the launcher's root: the system, and other directories by the paths that they get there."""
    tops = [f"/{top}" for top in _TOP]
    binds = ["/usr", *bound_directories(), *(top for top in tops if os.path.isdir(top) and not os.path.islink(top))]
    return {
        "binds": {**{path: path for path in binds}, **others},
        "links": {top: os.readlink(top) for top in tops if os.path.islink(top)},
        "copies": _ETC,
        "hidden": hidden_directories(),
    }


@cache
def system_words(*, is_enclosed: bool) -> Sequence[Argument]:
    """Return bwrap's options for the read-only system, from the launcher's own root or from the machine's."""
    words = [word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)]
    if is_enclosed:  # all at once: bwrap reads the list of mounts again for each one
        return [*words, "--ro-bind", "/", "/"]
    words += ["--ro-bind", "/usr", "/usr"]
    for top in _TOP:
        if os.path.islink(f"/{top}"):
            words += ["--symlink", os.readlink(f"/{top}"), f"/{top}"]
        elif os.path.isdir(f"/{top}"):
            words += ["--ro-bind", f"/{top}", f"/{top}"]
    for path in _ETC:
        words += ["--ro-bind-try", path, path]
    for directory in bound_directories():
        words += ["--ro-bind", directory, directory]
    for path in hidden_directories():
        words += ["--tmpfs", path, "--remount-ro", path]
    return words


@cache
def hidden_directories() -> Sequence[str]:
    """Return the hidden paths below the bound directories: installed packages, this project, import paths."""
    installed = [path for pattern in _INSTALLED for path in glob(pattern.format(prefix=sys.base_prefix))]
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    library = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    library |= {os.path.join(path, "lib-dynload") for path in library if path}
    imported = [path for path in (os.path.realpath(entry) for entry in sys.path if entry) if os.path.isdir(path)]
    paths = {*installed, here, *(path for path in imported if path not in library)}
    bound = ("/usr", *bound_directories())
    return sorted(path for path in paths if any(_is_below(path, top) for top in bound) and path not in bound)


def _is_below(path: str, top: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(top) + os.sep)
