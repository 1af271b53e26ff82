"""Modes and groups must be as the task asks."""

import grp
import os
import stat
import sys
from pathlib import Path

team = os.environ["TEAM"]
root = Path("/srv/share")


def is_right(path: Path, mode: int) -> bool:
    """Return whether a path has a kind and permissions, and the group of the team."""
    facts = path.lstat()
    return facts.st_mode == mode and facts.st_gid == group


try:
    group = grp.getgrnam(team).gr_gid
    folders, files = [root, root / "plans", root / "plans" / "old"], ["notes.txt", "plans/a.txt", "plans/old/b.txt"]
    rights = [is_right(folder, stat.S_IFDIR | 0o2770) for folder in folders] + [is_right(root / name, stat.S_IFREG | 0o660) for name in files]
    secret = (root / "secret.txt").lstat()
    rights += [secret.st_uid == 0 and stat.S_IMODE(secret.st_mode) == 0o600]
    texts = [(root / name).read_text() for name in files] if all(rights) else []
except (OSError, KeyError, ValueError):
    sys.exit(1)
sys.exit(not all(rights) or texts != ["Call Ines.\n", "Plan A.\n", "Plan B.\n"])
