"""Write the sizing table of docs/scaling.md: the fastest split of 1 to 64 GPUs for models of 0.5B to 32B, as planned.

Run: python scripts/sizing_table.py. The table stands between two comments of the page.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from envgym.trainer.launch.launch import check_addresses
from envgym.trainer.method import build_method
from envgym.trainer.planning.constants import control, device_named, shapes
from envgym.trainer.planning.engine import GIB
from envgym.trainer.planning.fit import fastest_split
from envgym.trainer.planning.predict import Plan
from envgym.trainer.planning.shapes import model_shape
from envgym.trainer.planning.workload import Workload
from envgym.trainer.settings import train_settings

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "scaling.md"
GPU: Final = "h200"
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)
WORK: Final = Workload(turns=4, prompt_tokens=512, turn_tokens=256, reply_tokens=128)
SETTINGS: Final = {
    "envs": [{"id": "math/arithmetic-v0"}],
    "model": {"precision": "mixed", "gradient_checkpointing": True},
    "engine": {"cache_gib": 40.0, "max_batch": 256, "concurrency": 256},
    "rollout": {"groups": 32, "group_size": 8, "staleness": 1, "deterministic": False},
    "correction": {"name": "tis"},
    "optim": {"micro_batch_tokens": 8192},
    "launch": {"servers": 1, "server_engine": "vllm", "transport": "nccl"},
}
MARKS: Final = re.compile(r"(<!-- sizing: [^>]*-->\n).*?(<!-- end of sizing -->)", re.DOTALL)


def table(sizes: Sequence[str]) -> str:
    """Return the table in Markdown, with a row for each size."""
    fastest = partial(fastest_split, check_split=check_addresses)
    settings, alone = train_settings(dict(SETTINGS)), train_settings({**SETTINGS, "launch": {}})
    objective, device = build_method(settings, warns=False).objective, device_named(GPU)
    lines = ["| model | " + " | ".join(f"{count} GPU{'s' * (count > 1)}" for count in COUNTS) + " |"]
    lines.append("|---" * (len(COUNTS) + 1) + "|")
    for size in sizes:
        shape = model_shape(settings.model, settings.optim, size=size, has_reference=False)
        cells = [
            cell(fastest(of_count, WORK, shape, device, control(), objective, num_devices=count))
            for count, of_count in ((count, settings if count > 1 else alone) for count in COUNTS)
        ]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(plan: Plan | None) -> str:
    """Return a plan in a few words: seconds, learners and servers, GiB of each, and the bottleneck."""
    if plan is None:
        return "does not fit"
    sizes = [sum(memory.values()) / GIB for memory in (plan.learner_memory, plan.sampler_memory) if memory]
    split = f"{plan.learners} + {plan.servers}" if plan.servers else "1"
    return f"{plan.step_s:.0f} s; {split}; {' / '.join(f'{size:.0f}' for size in sizes)} GiB; {plan.bottleneck}"


def main() -> None:
    """Write the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKS.sub(lambda match: f"{match[1]}\n{table(list(shapes()))}\n{match[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
