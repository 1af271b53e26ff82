"""Write docs/environments.md: every registered environment with an episode of its oracle.

Run: python scripts/environment_pages.py [ENV ...]. With ids only their sections are written anew, and what cannot be
made here keeps the section that it has.
"""

import argparse
import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import envgym
from envgym.authoring.env_card import describe, example_episode
from envgym.errors import EnvgymError
from envgym.registry import creator_of, find

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "environments.md"
IMAGES = ROOT / "docs" / "images"
WIDTH = 108
MAX_LINES = 14
"""Of one message."""
MAX_MESSAGES = 11
_SECTION = re.compile(r"^## `(?P<id>[^`]+)`\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_INTRO = """# Environments

All environments that ship with envgym, each with an episode that solves a task. `envgym show ENV` prints the
complete description of one; with `envgym play ENV` you play it yourself. `scripts/environment_pages.py` writes this
page. [What small models learned on some of them](results/environments.md). [How fast they are](results/speed.md).

*Fork* is how an episode is copied: by its state, or by replaying its actions. The *chance score* is the highest mean
reward of random baselines, which ignore the task.
"""
_QUESTION = {
    "question": "In which country does the river end on which the town of Aldermark lies?",
    "answer": "Norvia",
    "supporting_facts": [["Aldermark", 0], ["Lind", 0]],
    "context": [
        ["Aldermark", ["Aldermark is a town of mills.", "It lies on the river Lind."]],
        ["Lind", ["The Lind is 212 km long.", "It flows through Estland and ends in Norvia."]],
        ["Norvia", ["Norvia is a country of fishermen."]],
    ],
}
"""A question in the form of HotpotQA, made for this page."""
_ROWS = [
    {
        "data_source": "own/numbers",
        "prompt": [
            {"role": "system", "content": "End with the answer in \\boxed{}."},
            {"role": "user", "content": f"A shelf holds 6 rows of {number} books. How many books does it hold?"},
        ],
        "reward_model": {"style": "rule", "ground_truth": str(6 * number)},
    }
    for number in range(7, 27)
]
"""Rows in the form of verl, made for this page."""

_WITH_DATA = ("data/file-v0", "search/qa-v0", "tools/mcp_tasks-v0")
"""Environments whose tasks are a file of the user."""
_SHOWN_WITH: Mapping[str, Mapping[str, Any]] = {  # their own keyword arguments
    "math/proofs-v0": {"families": "induction", "levels": 2},
    "puzzles/science-v0": {"kinds": "power-component", "reward": "solved"},
    "puzzles/textworld-v0": {"games": "mapreader", "reward": "solved"},
}
"""Settings that keep an episode short."""
_IN_BASE_9 = """n, digits = int(input()), ""
while n:
    n, digit = divmod(n, 9)
    digits = str(digit) + digits
print(digits)"""
_ACTIONS: Mapping[str, Sequence[str]] = {"code/stdio-v0": [f"```python\n{_IN_BASE_9}\n```"]}
"""What is shown in place of an oracle that looks up hidden outputs."""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", metavar="ENV", nargs="*", help="ids (default: all)")
    args = parser.parse_args()
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    sections = sections_of(old)
    ids = [env_id for env_id in envgym.list_ids() if find(env_id).origin == "envgym"]
    for env_id in args.envs or ids:
        try:
            sections[env_id] = section(env_id)
        except EnvgymError as error:
            print(f"{env_id}: {error}")
            sections.setdefault(env_id, f"Not available where this page was written: {error}")
    parts = [_INTRO, overview(ids), *(f"## `{env_id}`\n\n{sections[env_id]}\n" for env_id in ids if env_id in sections)]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


def sections_of(page: str) -> dict[str, str]:
    """Return the text about each environment."""
    return {match["id"]: match["text"].strip() for match in _SECTION.finditer(page)}


def overview(ids: Sequence[str]) -> str:
    """Write the table of environments."""
    rows = []
    for entry in map(find, ids):
        parts = (entry.requires and f"envgym[{entry.requires}]", entry.wheel, entry.install)
        needs = ", ".join(f"`{part}`" for part in parts if part)
        anchor = entry.id.replace("/", "")
        rows.append(f"| [`{entry.id}`](#{anchor}) | {entry.summary} | {needs} |")
    return "\n".join(["| environment | task | needs |", "|---|---|---|", *rows, ""])


def section(env_id: str) -> str:
    """Write about one environment. Raises: EnvgymError: it cannot be made or played here."""
    with tempfile.TemporaryDirectory() as folder, closing(envgym.make(env_id, **_settings(env_id, folder))) as env:
        facts = describe(env, creator_of(env_id))
        image = _image(env_id, env)
        messages = example_episode(env, actions=_ACTIONS.get(env_id, ()))
        has_tools = bool(env.unwrapped.toolset())
    about = "\n".join(filter(None, [_facts(facts, has_tools), _note(env_id)]))
    return "\n\n".join(filter(None, [find(env_id).summary, about, image, transcript(messages)]))


def _note(env_id: str) -> str:
    """Return the line that says what the facts and the episode were made with, if not with the defaults."""
    if env_id in _WITH_DATA:
        return (
            "- Shown with a small data file that was made for this page; tasks and chance score are those of this file."
        )
    if shown := _SHOWN_WITH.get(env_id):
        return f"- Shown with {', '.join(f'`{name}: {value}`' for name, value in shown.items())}."
    return ""


def _settings(env_id: str, folder: str) -> Mapping[str, Any]:  # the env's own keyword arguments
    """Return the settings that an environment needs, or that keep its episode short."""
    if env_id not in _WITH_DATA:
        return _SHOWN_WITH.get(env_id, {})
    path = Path(folder) / "questions.jsonl"
    rows = [_QUESTION] if env_id == "search/qa-v0" else _ROWS
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = {"train": str(path)}
    if env_id == "search/qa-v0":
        return {"data": data, "corpus": "context"}
    server = {"name": "files", "command": [sys.executable, "-m", "envgym.envs.tools._mcp.servers.files"]}
    servers = {"mcp": [server]} if env_id == "tools/mcp_tasks-v0" else {}
    return {**servers, "data": data, "columns": {"answer": "reward_model.ground_truth"}, "verifier": "math"}


def _facts(facts: Mapping[str, Any], has_tools: bool) -> str:  # JSON
    sizes = ", ".join(
        f"{name} {'unlimited' if size is None else f'{size:,}'}" for name, size in facts["splits"].items()
    )
    tools = ", ".join(f"`{name}`" for name in facts["tools"]) or ("those of each task" if has_tools else "none")
    limit = f"at most {facts['max_turns']}" if facts["max_turns"] else "no limit"
    low, high = facts["reward_range"]
    return "\n".join(
        [
            f"- Tasks: {sizes}. Turns: {limit}. Fork: {facts['fork']}.",
            f"- Rewards: {low:g} to {high:g}. Chance score: {facts['chance_score']:.2g}.",
            f"- Tools: {tools}.",
        ]
    )


def _image(env_id: str, env: Any) -> str:  # some environments can be photographed
    """Write a screenshot, where the environment is a page in a browser."""
    name = env_id.partition("/")[2].rpartition("-")[0]
    path = IMAGES / f"{name}.png"
    take = getattr(env.unwrapped, "screenshot", None) if env_id == "web/miniwob-v0" else None
    if take is not None:
        env.reset(seed=0)
        path.write_bytes(take())
    return f"![What a browser shows of {env_id}](images/{path.name})" if path.exists() else ""


def transcript(episode: Sequence[tuple[str, str]]) -> str:
    """Write an episode as text, its middle left out where it is long."""
    messages = [_message("agent" if who == "oracle" else who, text) for who, text in episode if text]
    if len(messages) > MAX_MESSAGES:
        cut = MAX_MESSAGES // 2
        messages = [*messages[:cut], f"        ... {len(messages) - 2 * cut} messages ...", *messages[-cut:]]
    return "\n".join(["````text", *messages, "````"])


def _message(who: str, text: str) -> str:
    text = re.sub(r"<tool_call>\s*(.*?)\s*</tool_call>", _call, text, flags=re.DOTALL)
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, WIDTH, drop_whitespace=False) or [""]]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 3], f"... {len(lines) - MAX_LINES + 1} lines ...", *lines[-2:]]
    return "\n".join(f"{f'{who}:' if number == 0 else '':<8}{line}".rstrip() for number, line in enumerate(lines))


def _call(match: re.Match[str]) -> str:
    call = json.loads(match[1])
    arguments = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call["arguments"].items()
    )
    return f"{call['name']}({arguments})"


if __name__ == "__main__":
    main()
