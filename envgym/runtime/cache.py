"""What is made once and used again: the directory for it, how it is filled safely, results in memory within a bound."""

import os
import shutil
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import ParamSpec, TypeVar

from envgym.runs.files import move_into_place

P = ParamSpec("P")
V = TypeVar("V")


def cache_directory() -> Path:
    """Return `$ENVGYM_CACHE`, or the platform's cache directory for envgym; it need not exist yet."""
    if folder := os.environ.get("ENVGYM_CACHE"):
        return Path(folder).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "envgym"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envgym"


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return the directory `target`, filled by `build(directory)` where it does not exist yet.

    Appears whole or not at all. Processes that build at the same time all succeed; the first one's result stays.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        build(draft)
        draft.chmod(0o755)
        move_into_place(draft, target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def source_key(source: str) -> str:
    """The digest of everything that a thing made of `source` depends on, as 16 hex digits.

    Of a file or a folder: its path and the sizes and times of its files; of any other name (a hub's): the name.
    """
    path = Path(source)
    files = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
    facts = [(item, item.stat()) for item in files if item.is_file()]
    lines = [f"{item.resolve()} {stat.st_size} {stat.st_mtime_ns}" for item, stat in facts]
    return blake2b("\n".join(lines or [source]).encode(), digest_size=8).hexdigest()


def cached_within(max_bytes: int) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Return a decorator that keeps the results used last, with their arguments at most `max_bytes` of memory.

    Arguments are hashable and given by position. A failure is not kept, nor is a result that is larger than all the
    room. Threads that ask for the same at the same time may each compute it.
    """

    def decorate(function: Callable[P, V]) -> Callable[P, V]:
        entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        lock, used = Lock(), 0

        @wraps(function)
        def ask(*args: P.args, **kwargs: P.kwargs) -> V:
            nonlocal used
            assert not kwargs, "given by position"
            with lock:
                if args in entries:
                    entries.move_to_end(args)
                    return entries[args][0]
            result = function(*args, **kwargs)
            size = size_of((args, result))
            with lock:
                if size <= max_bytes and args not in entries:
                    entries[args], used = (result, size), used + size
                while used > max_bytes:
                    used -= entries.popitem(last=False)[1][1]
            return result

        return ask

    return decorate


_ATOMS = (str, bytes, int, float)


def size_of(value: object) -> int:
    """Return the bytes of a plain value and of all that it holds; what is held twice counts twice."""
    total, left = sys.getsizeof(value), [value]
    while left:
        parts = list(_parts(left.pop()))
        total += sum(map(sys.getsizeof, parts))
        left.extend(part for part in parts if not isinstance(part, _ATOMS))
    return total


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return chain.from_iterable(value.items())
    if isinstance(value, tuple | list | set | frozenset):
        return value
    if is_dataclass(value):
        return (getattr(value, field.name) for field in fields(value))
    return ()
