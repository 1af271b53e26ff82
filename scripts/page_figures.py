"""Write the measured numbers into the pages that mark them, and docs/results/status.md.

Run: python scripts/page_figures.py [--check]. `benchmarks/_figures.py` has the form of a mark. With `--check` nothing
is written: the pages that are older than their files are printed, and the exit status is 1.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks._figures import STATUS_PAGE, figures, filled, read_json, read_status, render_status
from envgym.runs.files import write_atomic

ROOT: Final = Path(__file__).resolve().parent.parent


def pages() -> list[Path]:
    """Return the pages that people write: those of the root and of docs/."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if not path.is_symlink())


def outdated() -> Iterator[tuple[Path, str]]:
    """Yield each page that differs from what the files of docs/results make of it, with its new text."""
    names = figures()
    for path in pages():
        old = path.read_text(encoding="utf-8")
        if (new := filled(old, names)) != old:
            yield path, new
    status = render_status(read_status(), read_json("gpu.json"), read_json("speed.json"))
    if not STATUS_PAGE.exists() or STATUS_PAGE.read_text(encoding="utf-8") != status:
        yield STATUS_PAGE, status


def main() -> int:
    """Write the pages, or print those that are older than their files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, print what is outdated")
    arguments = parser.parse_args()
    found = list(outdated())
    for path, text in found:
        if not arguments.check:
            write_atomic(path, text)
        print(path.relative_to(ROOT))
    return 1 if found and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
