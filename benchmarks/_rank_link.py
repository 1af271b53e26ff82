"""What two learner ranks on this machine take to gather the layers of a model and to scatter their gradients.

`measure_link` starts two processes of this module; rank 0 prints the counts and the seconds of its work as JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import torch

from benchmarks._processes import reason_of, run_until
from benchmarks._processor import Measured, llama, mean_seconds
from envgym.trainer.learner.ranks.group import RankGroup
from envgym.trainer.learner.ranks.meeting import Meeting
from envgym.trainer.learner.ranks.sharded import shard

_WIDTHS: Final = (128, 512)
_LAYERS: Final = 4
_TOKENS: Final = 4
_REPEATS: Final = 3
_LIMIT_S: Final = 300.0


def measure_link() -> list[Measured]:
    """Return layers and bytes that are gathered twice and scattered once, with the processor time that these take.

    Raises: RuntimeError: a rank failed.
    """
    from concurrent.futures import ThreadPoolExecutor

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        logs = [Path(folder, f"rank-{rank}") for rank in range(2)]
        commands = [[sys.executable, "-m", "benchmarks._rank_link", str(rank), f"{folder}/meeting"] for rank in (0, 1)]
        errors = [log.with_suffix(".errors") for log in logs]
        codes = list(pool.map(lambda n: run_until(commands[n], _LIMIT_S, output=logs[n], errors=errors[n]), range(2)))
        for code, log in zip(codes, errors, strict=True):
            if code != 0:
                raise RuntimeError(reason_of(code, _LIMIT_S, log))
        return [
            Measured(tuple(counts), seconds) for counts, seconds in json.loads(logs[0].read_text().splitlines()[-1])
        ]


def _work(rank: int, meeting: str) -> list[Measured]:
    torch.set_num_threads(1)
    group = RankGroup(torch.device("cpu"), Meeting.at_file(rank, 2, meeting))
    measured = []
    for width in _WIDTHS:
        model = llama(width, _LAYERS)
        num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
        ids = torch.arange(_TOKENS)[None]

        def step(model: torch.nn.Module = model, ids: torch.Tensor = ids) -> None:
            model(input_ids=ids, labels=ids).loss.backward()
            model.zero_grad()

        plain_s = mean_seconds(step, time.process_time, _REPEATS)
        shard(model, group.mesh)
        sharded_s = mean_seconds(step, time.process_time, _REPEATS)
        measured.append(Measured((_LAYERS, 3 * num_bytes), max(sharded_s - plain_s, 1e-6)))
    group.close()
    return measured


if __name__ == "__main__":
    print(json.dumps(_work(int(sys.argv[1]), sys.argv[2])))
