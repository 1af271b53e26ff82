"""Small task folders in the form of Harbor, written for a test."""

from pathlib import Path

TOML = """schema_version = "1.4"

[verifier]
timeout_sec = 30.0

[agent]
timeout_sec = 60.0

[environment]
build_timeout_sec = 120.0
"""
DOCKERFILE = "FROM envgym-sandbox\nUSER root\nRUN useradd --create-home --shell /bin/bash agent\nWORKDIR /app\n"
TEST = """#!/bin/bash
if [ "$(cat /app/answer.txt)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLUTION = "#!/bin/bash\necho 42 > /app/answer.txt\n"


def write_task(
    root: Path,
    name: str = "answer",
    *,
    toml: str = TOML,
    instruction: str | None = "Write 42 to /app/answer.txt.\n",
    dockerfile: str | None = DOCKERFILE,
    test: str | None = TEST,
    solution: str | None = SOLUTION,
    files: dict[str, str] | None = None,
) -> Path:
    """Write a task folder; None leaves a part out. `files` are further ones, by path in the folder."""
    folder = root / name
    parts = {
        "task.toml": toml,
        "instruction.md": instruction,
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": test,
        "solution/solve.sh": solution,
        **(files or {}),
    }
    for path, text in parts.items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    return folder
