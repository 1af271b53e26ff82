"""How test processes share work: tests that share programs run in one process.

pytest-xdist 3.8 writes the group of a test into a field that pytest 9.2 no longer reads, so its `loadgroup` groups
nothing: every process starts the programs of a module again. This scheduler reads the groups from the files.
"""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # shipped without types

_GROUP: Final = re.compile(r'mark\.xdist_group\("([^"]+)"\)')


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "GroupScheduling | None":
    """Keep the tests of a group in one process if groups are asked for (`--dist loadgroup`)."""
    return GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # its base has no types
    """Sends the tests of a group to one process, the largest group first, and every other test to any process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self.config.rootpath / nodeid.partition("::")[0]) or nodeid


@cache
def group_of(file: Path) -> str | None:
    """Return the group that a test file gives to its tests; None: no group."""
    found = _GROUP.search(file.read_text("utf-8")) if file.is_file() else None
    return None if found is None else found[1]
