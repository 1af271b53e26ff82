"""The directory for what is made once and used again, and how it is filled safely."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path


def cache_directory() -> Path:
    """Return `$ENVGYM_CACHE`, or the platform's cache directory for envgym; it need not exist yet."""
    if chosen := os.environ.get("ENVGYM_CACHE"):
        return Path(chosen).expanduser()
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
        draft.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def source_key(source: str) -> str:
    """Return what a thing made of `source` depends on, as 16 hex digits.

    Of a file or a folder: its path and the sizes and times of its files; of any other name (a hub's): the name.
    """
    path = Path(source)
    files = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
    facts = [(item, item.stat()) for item in files if item.is_file()]
    lines = [f"{item.resolve()} {stat.st_size} {stat.st_mtime_ns}" for item, stat in facts]
    return blake2b("\n".join(lines or [source]).encode(), digest_size=8).hexdigest()
