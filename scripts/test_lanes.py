"""Run test lanes: those that need nothing but the main environment, or all whose parts install.

A lane is a marker expression with its own constraints file, time limit and, where packages clash, its own environment.
Limits are stated for two idle cores; before each lane a piece of work measures by how much longer they are now.
Lanes that use one core run after the other lanes, two at the same time.
Standard library only, so that any Python can start it:

    python scripts/test_lanes.py [--all] [--fast] [--minutes N] [--debian] [--install] [LANE ...]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this file is started as a script

from scripts.lanes.running import prepare, run_lanes
from scripts.lanes.table import FAST_STEP, LANES, Lane


def main() -> int:
    """Run the chosen lanes, print what each took, and end with one line of counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own = ", ".join(lane.name for lane in LANES if lane.is_self_contained)
    rest = ", ".join(lane.name for lane in LANES if not lane.is_self_contained)
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=f"default: {own}; with --all also {rest}")
    parser.add_argument("--all", action="store_true", help="also lanes with packages or environments of their own")
    parser.add_argument("--fast", action="store_true", help="only the fast tests of the core lane")
    minutes = os.environ.get("ENVGYM_TEST_MINUTES", "inf")
    told = "what all lanes may take; those that will not end are skipped (default: ENVGYM_TEST_MINUTES, else no limit)"
    parser.add_argument("--minutes", type=float, default=minutes, metavar="N", help=told)
    parser.add_argument("--debian", action="store_true", help="print the lanes' command:package pairs and stop")
    parser.add_argument("--install", action="store_true", help="install what the lanes need and run no test")
    arguments = parser.parse_args()
    if unknown := set(arguments.lanes) - {lane.name for lane in LANES}:
        parser.error(f"a lane must be one of {', '.join(x.name for x in LANES)}, got {', '.join(sorted(unknown))}")
    if arguments.debian:
        print(*(pair for lane in LANES for pair in lane.debian), sep="\n", end="")
        return 0
    chosen = arguments.lanes or [lane.name for lane in LANES if arguments.all or lane.is_self_contained]
    lanes = [lane for lane in LANES if lane.name in chosen]
    if arguments.fast:
        lanes = [Lane(name="fast", steps=(FAST_STEP,), limit_s=300)]
    if arguments.install:
        installed = [prepare(lane) for lane in lanes]
        return 0 if all(installed) else 1
    return run_lanes(lanes, most_s=60 * arguments.minutes)


if __name__ == "__main__":
    sys.exit(main())
