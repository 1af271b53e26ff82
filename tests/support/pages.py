"""The pages of the documentation, their fenced blocks, and the files that these take for granted."""

import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r'^(?P<fence>`{3,})(?P<language>\w*)(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)^(?P=fence)$',
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    """Path from the root."""
    line: int
    """Where it begins."""
    language: str
    title: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_suite(self) -> bool:
        """Whether it is the file of a suite, which is evaluated, not trained."""
        return self.language == "yaml" and "searches" in yaml.safe_load(self.text)

    @property
    def commands(self) -> list[str]:
        """The first command of every line of a shell block, without redirections and the folder of programs."""
        lines = [re.split(r" (?:>|&&) ", line)[0] for line in self.text.replace(".venv/bin/", "").splitlines()]
        return list(filter(None, (shlex.join(shlex.split(line, comments=True)) for line in lines)))


@cache
def read_blocks(page: str) -> tuple[Block, ...]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return tuple(
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["title"] or "", found["text"])
        for found in _FENCE.finditer(text)
    )


def blocks_of(page: str, *languages: str) -> list[Block]:
    return [block for block in read_blocks(page) if block.language in languages]


def program_of_the_page(package: str, page: str = "docs/connect.md") -> str:
    """Return the program of a page that imports a package of another project, before files that do."""
    blocks = [block for block in blocks_of(page, "python") if f"from {package} import" in block.text]
    (block,) = [block for block in blocks if not block.title] or blocks
    return block.text


PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    )
    if not path.is_symlink()
]
BLOCKS = [block for page in PAGES for block in read_blocks(page)]
SMALL: Final = (
    "run.steps=1",
    "run.save_episodes_every=1",
    "model.name=tiny",
    "model.tiny={hidden_size: 64, num_layers: 1, num_heads: 2, num_kv_heads: 2, intermediate_size: 64}",
    "sft={episodes: 8, batch_size: 4}",
    "rollout={groups: 2, group_size: 2}",
    "filter.name=keep_all",
    "evaluation.tasks=3",
)
"""Laid over a training run of a page: seconds instead of minutes, and a model that learns nothing."""
_QUESTION: Final = (
    '{"question": "In which land does Aldermark lie?", "answer": "Norvia", "supporting_facts": [["Aldermark", 0]], '
    '"context": [["Aldermark", ["Aldermark lies in Norvia."]], ["Lind", ["The Lind is a river."]]]}\n'
)
_METRIC: Final = """
from collections.abc import Sequence

from envgym.core.trajectory import Trajectory
from envgym.config.settings import Settings


class Calls(Settings):
    tool: str

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        return {"calls": sum(self.tool in turn.outcome.action for episode in episodes for turn in episode.turns)}
"""


def write_files(folder: Path) -> None:
    """Write what the pages show as files, and what they take for granted."""
    for block in BLOCKS:
        if block.title:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text, encoding="utf-8")
    guide = [block.text for block in blocks_of("docs/write_an_environment.md", "python")]
    (folder / "my_games.py").write_text("\n\n".join(guide), encoding="utf-8")
    for name in ("hotpot_dev.jsonl", "nq_test.jsonl"):
        (folder / name).write_text(_QUESTION, encoding="utf-8")
    (folder / "wiki.jsonl").write_text('{"id": "baikal", "text": "Baikal is the deepest lake."}\n', encoding="utf-8")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "examples/plugins/last_turn.py", folder / "my_search.py")
    (folder / "my_package").mkdir()
    (folder / "my_package/metrics.py").write_text(_METRIC, encoding="utf-8")


def form_of(printed: str) -> list[str]:
    """Return the lines of an output with every number, which differs from run to run, as N."""
    text = re.sub(r", about .* left$", "", printed, flags=re.MULTILINE)
    text = re.sub(r"monte-carlo|exact", "SOME", text)
    text = re.sub(r"[+-]?\d[\d.]*(?:e[+-]?\d+)?", "N", text)
    return re.sub(r"N (?:h N min|min N s)", "N s", text).splitlines()
