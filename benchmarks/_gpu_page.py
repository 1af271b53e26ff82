"""The page `docs/results/gpu.md`, from what `benchmarks/gpu.py` found."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from benchmarks._tables import table

Record = Mapping[str, Any]

_HEAD: Final = """\
# On a GPU

**Question.** Does the code that runs on a GPU compute what it should, and how much of the GPU does it use?
"""
_UNSEEN: Final = """
**Answer.** A first run on an H200, of an earlier version, passed every check. Its record was not kept, so the tables
are missing until the next run; what it showed:

- A packed train step took 0.37 s at 0.5B and 0.65 s at 1.5B, a padded one 0.86 s and 1.86 s: 2.3 and 2.9 times as
  fast, of 3.9 and 4.3 that the operations allow. Model-FLOPs utilisation was 16 % and 29 % packed, 27 % and 44 %
  padded.
- A decoding step took 16 to 20 ms, whether recorded or call by call. A recorded step by itself takes 3 ms, so
  recording most likely failed there, and without notice. Such a warning now fails its stage.

The dry run on the CPU, with small sizes, is a test.
"""
_COMMAND: Final = """
```bash
make gpu
```

This runs the stages below in at most ten minutes, on one GPU and without a network, and writes this page and
`docs/results/gpu.json`. For a machine without a network, `make gpu-wheels` on another one downloads what envgym needs
beside torch and transformers into the folder `wheels/` (under 50 MB), to be copied along with the checkout; there
`make gpu GPU_PYTHON=python3` names the Python that has torch. Without CUDA the command says so and makes its dry run.
"""
_CHECKS: Final = {
    "attention": "FlexAttention over packs of uneven trees of depth 3, also with a sliding window, against dense "
    "attention in float64, forward and backward",
    "packing": "packed against padded rows through a whole model: log-probs and gradient",
    "compiled": "compiled against plain layers of a whole model: log-probs and gradient; passes without gradient",
    "sampling": "the transformers policy against plain forward passes: log-probs of sampled tokens, greedy tokens; "
    "sequences join and leave, and contexts are reused",
    "demo": "`examples/demo.yaml` for 8 steps with mask audit and canary: numbers are finite, success does not fall",
    "server": "the same for 2 steps, with a policy server in its own process, which reads new weights through CUDA IPC",
    "resume": "the last step of a run, repeated from its checkpoint",
}
_SPEED: Final = """\
- Training: a train step on 8 groups of 16 rows that share a prompt of 512 tokens and have 96 of their own, packed and
  padded, and packed with compiled layers (`optim.compile_layers`), in micro-batches of at most 8,192 tokens.
  Model-FLOPs utilisation is

        6 (W_layers n + W_head s) + 12 L d P
        ------------------------------------
                   seconds x peak

    with the matrix weights of the layers and of the head (W), n computed tokens without padding, s trained tokens,
    L layers of width d, and P pairs of a token and one that it attends. Forward counts once, backward twice, and
    nothing counts that is computed again. The peak is that of dense products in bfloat16: 790 TFLOP/s for an H200, or
    `--peak-tflops`.
- Sampling: decoding steps of 1, 8 and 64 sequences after contexts of 512 tokens, from recorded steps (CUDA graphs) and
  call by call. The bound is the time of reading every weight once, and all keys and values, at the bandwidth of a copy
  measured in the same run.
"""


def render_page(record: Record | None) -> str:
    """Return the page; None: nothing has been measured on a GPU yet."""
    if record is None:
        parts: Iterable[str] = (_UNSEEN, _COMMAND, "\n## What is checked\n\n", *_listed_checks())
        return "".join((_HEAD, *parts, "\n## What is measured\n\n", _SPEED))
    failed = _failed(record)
    answer = "every check passed" if not failed else f"{len(failed)} of the stages failed or are beyond a bound"
    parts = [
        _HEAD,
        f"\n**Answer.** {_device(record['machine'])}: {answer}; the tables below are the answer to the rest.\n",
        _COMMAND,
        "\n## Checks\n\n",
        *_listed_checks(),
        "\n",
        *table(["stage", "check", "found", "at most", "passed"], _check_rows(record)),
        *_compilations(record.get("attention", {})),
        "\n## Training\n\n",
        *table(_TRAINING, _training_rows(record)),
        "\n## Sampling\n\n",
        *table(_SAMPLING, _sampling_rows(record)),
        "\n## How it is measured\n\n",
        _SPEED,
        *_errors(record),
    ]
    return "".join(parts)


_TRAINING: Final = ["size", "rows", "s per step", "tokens", "TFLOP", "utilisation", "peak GiB", "first step, s"]
_SAMPLING: Final = [
    "size",
    "sequences",
    "tokens/s",
    "ms per step",
    "call by call, ms",
    "bound, ms",
    "of the bound",
    "peak GiB",
]


def _listed_checks() -> Iterator[str]:
    return (f"- {name.capitalize()}: {text}.\n" for name, text in _CHECKS.items())


def _device(machine: Record) -> str:
    if "error" in machine:
        return "The device could not be described"
    return (
        f"{machine['device']}, {machine['memory_gib']:.0f} GiB, "
        f"copies at {machine['copy_bytes_per_s'] / 1e12:.2f} TB/s, "
        f"products in bfloat16 at {machine['product_flops'] / 1e12:.0f} TFLOP/s, torch {machine['torch']} "
        f"(CUDA {machine['cuda']}), transformers {machine['transformers']}"
    )


def _stages(record: Record) -> dict[str, Record]:
    return {name: found for name, found in record.items() if isinstance(found, Mapping)}


def _failed(record: Record) -> list[str]:
    return [
        name
        for name, found in _stages(record).items()
        if {"error", "warnings"} & set(found) or not all(check["passed"] for check in found.get("checks", ()))
    ]


def _check_rows(record: Record) -> Iterator[list[str]]:
    for name in _CHECKS:
        found = record.get(name, {})
        if "error" in found:
            yield [name, "failed, see below", "", "", "**no**"]
        for check in found.get("checks", ()):
            is_passed = "yes" if check["passed"] else "**no**"
            yield [name, check["name"], f"{check['value']:.2g}", f"{check['bound']:.2g}", is_passed]


def _compilations(found: Record) -> Iterator[str]:
    if "graphs" not in found:
        return
    lengths = ", ".join(map(str, found["pack_lengths"]))
    yield f"\nPacks of {lengths} tokens, in this order, and how many graphs had been compiled after each:\n"
    counts = [[kind, ", ".join(map(str, graphs))] for kind, graphs in found["graphs"].items()]
    yield "\n"
    yield from table(["attention", "graphs"], counts)


def _training_rows(record: Record) -> Iterator[list[str]]:
    for name, found in _stages(record).items():
        kind, _, size = name.partition(" ")
        if kind not in ("training", "compiled"):
            continue
        if "error" in found:
            yield [size, "failed, see below", *[""] * (len(_TRAINING) - 2)]
            continue
        sides = {way: side for way, side in found.items() if way.startswith(("packed", "padded"))}
        for way, side in sides.items():
            yield [
                size,
                way,
                f"{side['seconds']:.3f}",
                f"{side['tokens']:,}",
                f"{side['tflops']:.1f}",
                f"{side['mfu']:.1%}",
                f"{side['peak_gib']:.1f}",
                f"{side['first_s']:.1f}",
            ]
        if kind == "compiled":
            continue
        gain = f"{found['speedup']:.2f} times as fast, of {found['flop_ratio']:.2f} counted"
        yield [size, gain, *[""] * (len(_TRAINING) - 2)]


def _sampling_rows(record: Record) -> Iterator[list[str]]:
    for name, found in _stages(record).items():
        if not name.startswith("sampling "):
            continue
        size = name.removeprefix("sampling ")
        if "error" in found:
            yield [size, "failed, see below", *[""] * (len(_SAMPLING) - 2)]
            continue
        for batch, cell in found["batches"].items():
            yield [
                size,
                batch,
                f"{cell['tokens_per_s']:,.0f}",
                f"{cell['step_ms']:.2f}",
                f"{found['call_by_call'][batch]['step_ms']:.2f}",
                f"{cell['bound_ms']:.2f}",
                f"{cell['of_bound']:.0%}",
                f"{cell['peak_gib']:.1f}",
            ]


def _errors(record: Record) -> Iterator[str]:
    broken = {name: found["error"] for name, found in _stages(record).items() if "error" in found}
    broken |= {name: "\n".join(found["warnings"]) for name, found in _stages(record).items() if "warnings" in found}
    if not broken:
        return
    yield "\n## What failed\n"
    for name, error in broken.items():
        yield f"\n{name}:\n\n```text\n{error.strip()}\n```\n"
