"""The Python blocks of a page run in their order, in one namespace and an empty folder."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
import yaml

import envgym
from envgym.agents.models.loading import resolve_model
from envgym.agents.protocols import Policy
from envgym.config.settings import apply_overrides
from envgym.core.turns import Ending
from envgym.runtime.event_loop import run_coroutine
from tests.support.pages import BLOCKS, SMALL, blocks_of

Names = dict[str, Any]
OTHERS: Final = frozenset({"README.md"}) | frozenset(
    f"docs/{name}.md"
    for name in (
        "connect",
        "curricula",
        "evaluate",
        "first_task",
        "notebooks",
        "policy_servers",
        "sandbox",
        "train",
        "use_the_model",
        "write_an_environment",
    )
)
"""Pages whose programs another test runs; tests/docs/test_blocks.py says which."""
PAGES: Final = sorted({block.page for block in BLOCKS if block.language == "python"} - OTHERS)
NAMES: Final[Mapping[str, Callable[[], Names]]] = MappingProxyType(
    {
        "docs/architecture.md": lambda: {"env": envgym.make("math/arithmetic-v0")},
        "docs/engines.md": lambda: {"Policy": Policy},
    }
)
"""What a page takes for granted."""
SMALLER: Final = MappingProxyType(
    {
        "docs/annotate.md": (("rounds=3, episodes=2048", "rounds=1, episodes=16"),),
        "docs/replay.md": (
            (
                '"model": {"name": "smollm2"}',
                '"model": {"name": "tiny", "tiny": {"hidden_size": 64, "num_layers": 1, "num_heads": 2, '
                '"num_kv_heads": 2}}, "sft": {"episodes": 4}, "agent": {"max_turn_tokens": 8, "on_length": "close"}, '
                '"evaluation": {"tasks": 2}',
            ),
            ('"run": {"steps": 200}', '"run": {"steps": 1, "trackers": []}'),
        ),
    }
)
"""What is changed in the programs of a page, so that they take seconds."""
CHECKS: Final[Mapping[str, Callable[[Names, str], object]]] = MappingProxyType(
    {
        "docs/index.md": lambda names, out: names["info"]["envgym"].task.prompt in out,
        "docs/architecture.md": lambda names, out: (
            names["record"].ending is Ending.TERMINATED
            and names["terminated"]
            and names["record"].action.content == "the answer is 12"
            and names["record"].reward.value == names["reward"]
        ),
        "docs/annotate.md": lambda names, out: re.search(r"round-01/scorer \S*round-01/policy", out),
        "docs/search_envs.md": lambda names, out: re.match(r"\d\.\d+ baikal", out),
    }
)
"""What holds after the programs of a page, given their names and what they printed."""


@pytest.mark.docs
@pytest.mark.parametrize("page", PAGES)
def test_programs_of_a_page_run(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if page == "docs/search_envs.md":
        pytest.importorskip("bm25s")
    (folder / "runs").rename(folder / "earlier")  # the programs begin without
    settings = apply_overrides(yaml.safe_load(Path("first.yaml").read_text(encoding="utf-8")), SMALL)
    Path("first.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    names: Names = NAMES.get(page, dict)()
    capsys.readouterr()
    for block in blocks_of(page, "python"):
        if "VllmPolicy(" not in block.text:  # test_programs_with_vllm_run
            text = "\n" * block.line + block.text  # a traceback has the page's line
            for old, new in SMALLER.get(page, ()):
                assert old in text
                text = text.replace(old, new)
            exec(compile(text, block.page, "exec"), names)
    if page in CHECKS:
        assert CHECKS[page](names, capsys.readouterr().out)


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_programs_with_vllm_run(vllm_url: str) -> None:
    names: Names = {"Policy": Policy}
    replaced = {"path/or/hub-name": str(resolve_model("tiny")), "http://host:8000/v1": vllm_url, "NAME": "tiny"}
    for block in blocks_of("docs/engines.md", "python"):
        text = block.text
        for old, new in replaced.items():
            text = text.replace(old, new)
        exec(compile(text, block.page, "exec"), names)
    run_coroutine(names["evaluate"]())
