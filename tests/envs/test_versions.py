"""What an id names: a digest of each environment's tasks, splits and rewards is kept beside the golden transcripts.

`ENVGYM_WRITE_GOLDEN=1 pytest tests/envs/test_versions.py` writes the digests anew; CONTRIBUTING.md says when.
"""

import json
import os
import re

import pytest

import envgym
from envgym.core.json_types import JsonValue, content_hash
from envgym.core.tasks import Split
from envgym.registry import find
from tests.envs.requirements import require_packages
from tests.envs.test_golden_transcripts import GOLDEN, golden_names, read_golden
from tests.support.lanes import env_params

PATH = GOLDEN / "versions.json"
NUM_GENERATED = 10
"""Tasks of each split that count where tasks are generated without end; of a finite set all count."""
FROM_PACKAGES = {
    "code/humaneval-v0",
    "data/file-v0",
    "puzzles/reasoning_gym-v0",
    "puzzles/science-v0",
    "puzzles/textarena-v0",
    "puzzles/textworld-v0",
    "puzzles/wordle-v0",
    "search/qa-v0",
    "tools/bfcl-v0",
    "tools/mcp_tasks-v0",
    "tools/tau2-v0",
    "web/miniwob-v0",
}
"""Their tasks are those of another package or data set, and change with its version."""
OURS = [env_id for env_id in envgym.list_ids() if find(env_id).origin == "envgym" and env_id not in FROM_PACKAGES]
_PAID = re.compile(r"^\[env.*\]$|^[A-Z_]+, reward .*$", re.MULTILINE)


@pytest.mark.parametrize("env_id", env_params(OURS))
def test_tasks_splits_and_rewards_change_only_on_purpose(env_id: str) -> None:
    require_packages(env_id)
    found, kept = digest_of(env_id), json.loads(PATH.read_text(encoding="utf-8"))
    if os.environ.get("ENVGYM_WRITE_GOLDEN"):
        kept[env_id] = found
        PATH.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == kept.get(env_id), (
        f"tasks, splits and rewards of {env_id} must be those of {PATH.name}, got others; undo the change, "
        "or follow 'Versions of environments' in CONTRIBUTING.md"
    )


def test_every_digest_is_of_an_environment_of_ours() -> None:
    assert set(json.loads(PATH.read_text(encoding="utf-8"))) == set(OURS)


def digest_of(env_id: str) -> str:
    """Hash the prompts and contents of the splits, and what the golden episodes are paid."""
    tasks = envgym.make(env_id).unwrapped.tasks
    lines: list[JsonValue] = []
    for split in Split:
        size = tasks.size(split)
        for index in range(NUM_GENERATED if size is None else size):
            task = tasks.task(split, index)
            lines.append([split.value, task.prompt, task.key])
    transcripts = [GOLDEN / f"{name}.txt" for name in golden_names() if read_golden(name)[0] == env_id]
    paid: list[JsonValue] = [line for path in transcripts for line in _PAID.findall(path.read_text(encoding="utf-8"))]
    return content_hash({"tasks": lines, "paid": paid})
