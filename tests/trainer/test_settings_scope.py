"""Only the code that reads, checks, plans and builds a run takes its settings whole; everything else takes sections."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    "envgym/api.py",
    "trainer/build.py",
    "trainer/checks/changes.py",
    "trainer/checks/preflight.py",
    "trainer/launch/launch.py",
    "trainer/launch/workers/parts.py",
    "trainer/method.py",
    "trainer/phases.py",
    "trainer/planning/engine.py",
    "trainer/planning/fit.py",
    "trainer/planning/memory.py",
    "trainer/planning/predict.py",
    "trainer/planning/scope.py",
    "trainer/planning/step_time.py",
    "trainer/planning/workload.py",
    "trainer/prepare.py",
    "trainer/self_training.py",
    "trainer/settings.py",
    "trainer/train.py",
]


def test_only_the_code_that_builds_a_run_takes_its_settings_whole() -> None:
    sources = [path for folder in ("envgym", "agents", "trainer", "envs") for path in (ROOT / folder).rglob("*.py")]
    naming = {path.resolve() for path in sources if re.search(r"\bTrainSettings\b", path.read_text(encoding="utf-8"))}
    assert sorted(path.relative_to(ROOT.resolve()).as_posix() for path in naming) == FILES
