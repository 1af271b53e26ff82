"""Peak memory and time of log-probabilities with gradient at a vocabulary of 128k: in chunks, and from all logits.

Run: python benchmarks/chunked_logprobs.py [--vocab 131072] [--hidden 64] [--tokens 512 2048]. Prints one JSON line.
Each variant runs in a process of its own, because a process keeps its peak.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import sys
import time
from typing import NamedTuple

MIB = 2**20


class Measure(NamedTuple):
    """What one process saw."""

    extra_mib: float
    """Peak resident memory of forward and backward, above that of the inputs, the weights and the weights' gradient."""
    seconds: float
    checksum: float
    """Norm of the gradient by the hidden states: equal in both variants."""


def peak_mib() -> float:
    """Return the peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024


def measure(variant: str, tokens: int, vocab: int, hidden: int, num_threads: int) -> Measure:
    """Run one variant once, after a run on one token that loads what is loaded lazily."""
    import torch

    from envgym.trainer.learner.causal_lm import LmHead
    from envgym.trainer.learner.logprobs import chunked_logprobs

    torch.set_num_threads(num_threads)
    generator = torch.Generator().manual_seed(0)
    weight_VD = torch.randn(vocab, hidden, generator=generator).div_(hidden**0.5).requires_grad_()
    hidden_TD = torch.randn(tokens, hidden, generator=generator).requires_grad_()
    targets_T = torch.randint(0, vocab, (tokens,), generator=generator)

    def run(num_tokens: int) -> None:
        here = slice(0, num_tokens)
        if variant == "chunked":
            logprobs_T = chunked_logprobs(hidden_TD[here], LmHead(weight_VD=weight_VD), targets_T[here]).logprobs_T
        else:
            logits_TV = torch.nn.functional.linear(hidden_TD[here], weight_VD)
            logprobs_T = logits_TV.log_softmax(dim=-1).gather(-1, targets_T[here, None]).squeeze(-1)
        logprobs_T.sum().backward()

    run(1)  # also allocates the gradients, which both variants need
    assert hidden_TD.grad is not None
    hidden_TD.grad.zero_()
    before, started = peak_mib(), time.perf_counter()
    run(tokens)
    seconds = time.perf_counter() - started
    return Measure(peak_mib() - before, seconds, hidden_TD.grad.norm().item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=131_072)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    processes = multiprocessing.get_context("spawn")
    results = []
    for tokens in options.tokens:
        for variant in ("chunked", "dense"):
            with processes.Pool(1) as pool:
                seen = pool.apply(measure, (variant, tokens, options.vocab, options.hidden, options.threads))
            results.append({"variant": variant, "tokens": tokens, **seen._asdict()})
    chunked = [row["extra_mib"] for row in results if row["variant"] == "chunked"]
    line = {
        "benchmark": "chunked_logprobs",
        "vocab": options.vocab,
        "hidden": options.hidden,
        "results": [
            {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
            for row in results
        ],
        "chunked_growth": round(max(chunked) / min(chunked), 3),
        "tokens_growth": max(options.tokens) / min(options.tokens),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
