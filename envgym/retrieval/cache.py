"""Where what was built once is kept, and how it gets there whole."""

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

CACHE_VARIABLE = "ENVGYM_CACHE"


def cache_dir() -> Path:
    """Return the folder of caches: `$ENVGYM_CACHE`, else `envgym` in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envgym"


def built_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `build(empty folder)` where it does not exist yet.

    It appears whole or not at all: it is filled under another name beside its place and then renamed. Of several
    processes that build at the same time the first wins.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        build(work)
        work.chmod(0o755)
        work.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def key_of(source: str) -> str:
    """Return what a thing made of `source` depends on, as 16 hex digits.

    Of a file or a folder: its path and the sizes and times of its files; of any other name (a hub's): the name.
    """
    path = Path(source)
    files = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
    facts = [(item, item.stat()) for item in files if item.is_file()]
    lines = [f"{item.resolve()} {stat.st_size} {stat.st_mtime_ns}" for item, stat in facts]
    return blake2b("\n".join(lines or [source]).encode(), digest_size=8).hexdigest()
