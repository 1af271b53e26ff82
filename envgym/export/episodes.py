"""Which recorded episodes are exported, and how they are read: group by group, with or without their tokens."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from envgym.core.json_types import decode_recorded
from envgym.core.messages import Action, Observation
from envgym.core.segments import Origin, Segment
from envgym.core.serialize import reward_from_json, tree_from_json
from envgym.core.tasks import Split
from envgym.core.trajectory import Trajectory
from envgym.core.tree import PLAIN_PROMPT, Tree
from envgym.core.turns import TurnOutcome, is_success
from envgym.errors import InvalidInput, RunError, UnknownName, suggestion
from envgym.runs.directory import RunDirectory, file_label, file_step, label_of, reading

Only = Literal["all", "valid", "success"]
"""Every episode, those with a valid reward, or those that succeeded."""
Advantages = Sequence[float | Sequence[float]]
"""One entry for each node of an episode's path: a number, or one for each sampled token of the node."""

TEST: Final = "of test tasks"
HINTED: Final = "with a hint in the prompt"
_COLUMNS: Final = ("tree_id", "leaf", "split", "advantages", "tree")
_BATCH_ROWS: Final = 256
_SEGMENTS: Final = '"segments": ['
_AFTER_SEGMENTS: Final = '], "cost": {'
_NO_ACTION, _NO_OBSERVATION = Action(""), Observation("")
_PROMPT: Final = Segment(origin=Origin.PROMPT, token_ids=(0,))
_SAMPLED: Final = Segment(origin=Origin.POLICY, token_ids=(0,), behavior_logprobs=(0.0,), policy_version=0)
_OTHER: Final = Segment(origin=Origin.TOOL, token_ids=(0,))
_SHORTENED: Final[Mapping[str, tuple[Segment, ...]]] = MappingProxyType(
    {"": (), "prompt": (_PROMPT,), "prompt, sampled": (_PROMPT, _SAMPLED), "sampled": (_SAMPLED,), "other": (_OTHER,)}
)
"""Name in the shortened JSON -> the segments of the edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeChoice:
    """Which episodes of a run are exported."""

    label: str = "train"
    """`train`, or the label of an evaluation."""
    first_step: int = 0
    last_step: int | None = None
    """None: the last one of the run."""
    only: Only = "valid"
    success_at: float = 1.0
    """Reward from which an episode succeeded."""
    includes_test: bool = False
    """Whether episodes of test tasks are exported too."""

    def takes(self, episode: Trajectory) -> bool:
        """Return whether an episode is one of them by its reward."""
        if self.only == "success":
            return episode.has_reward and is_success(episode.reward, self.success_at)
        return self.only == "all" or episode.is_valid


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTree:
    """A tree as a run recorded it."""

    tree: Tree
    label: str
    step: int
    advantages: Mapping[int, Advantages] = field(default_factory=dict)
    """Leaf -> what training gave the episode; none for episodes that were not trained on."""


class RecordedGroup(NamedTuple):
    """The trees of one task that share a baseline: those of a train step, or the samples of an evaluation's task."""

    trees: tuple[RecordedTree, ...]


def parse_steps(text: str | None) -> tuple[int, int | None]:
    """Read a range of train steps: `10-20`, `10-`, `-20` or `10`. Raises: InvalidInput: it is none."""
    if text is None:
        return 0, None
    match = re.fullmatch(r"(\d*)(-?)(\d*)", text)
    if match is None or not (match[1] or match[3]):
        raise InvalidInput.of("--steps", "be a range such as 10-20", text, where="envgym export", do="correct it")
    first = int(match[1] or 0)
    last = int(match[3]) if match[3] else (None if match[2] else first)
    if last is not None and last < first:
        do = "write the smaller step first"
        raise InvalidInput.of("--steps", "end at or after its first step", text, where="envgym export", do=do)
    return first, last


def chosen_files(run: RunDirectory, choice: EpisodeChoice) -> list[Path]:
    """Return the files of episodes. Raises: RunError: the run has none. UnknownName: none with the label."""
    files = run.episode_files()
    do = "record episodes with run.save_episodes_every: 1 (evaluations always record them)"
    RunError.unless(files, "run", "have saved episodes", "none", where=str(run.path), do=do)
    labels = dict.fromkeys(label_of(file) for file in files)
    if file_label(choice.label) not in labels:
        do = suggestion(choice.label, labels)
        raise UnknownName.of("label", "be one of the run", repr(choice.label), where=str(run.path), do=do)
    files = [file for file in files if label_of(file) == file_label(choice.label)]
    steps = [file_step(file) for file in files]
    last = max(steps) if choice.last_step is None else choice.last_step
    files = [file for file in files if choice.first_step <= file_step(file) <= last]
    must, do = "include steps with saved episodes", f"choose steps from {min(steps)} to {max(steps)}"
    got = f"{choice.first_step}-{last}"
    RunError.unless(files, "--steps", must, got, where=str(run.path), do=do)
    return files


def num_episodes(files: Iterable[Path]) -> int:
    """Return the number of episodes in files; the episodes themselves are not read."""
    import pyarrow.parquet as pq  # heavy: loaded where it is needed

    total = 0
    for file in files:
        with reading(str(file)):
            total += pq.read_metadata(file).num_rows
    return total


def read_groups(
    files: Iterable[Path], choice: EpisodeChoice, left_out: Counter[str], *, with_tokens: bool
) -> Iterator[RecordedGroup]:
    """Yield the groups of episode files, in order.

    Args:
        files: those of one label.
        choice: test tasks are left out unless it includes them, and trees with a hint always, because hints can hold
            parts of the solution; all episodes of a tree are read.
        left_out: counts the episodes that are left out.
        with_tokens: whether segments keep their tokens, and outcomes only their rewards; otherwise tokens are cut.
            Both are much faster than to read the trees whole.

    Raises: RunError: a file cannot be read.
    """
    for file in files:
        trees = _trees(file, choice, left_out, with_tokens=with_tokens)
        for _, group in groupby(trees, key=_group_of):
            yield RecordedGroup(tuple(group))


def _group_of(recorded: RecordedTree) -> tuple[str, str]:
    return recorded.tree.id.rpartition("/")[0], recorded.tree.task_key


def _trees(file: Path, choice: EpisodeChoice, left_out: Counter[str], *, with_tokens: bool) -> Iterator[RecordedTree]:
    with reading(str(file)):
        for rows in _rows_of_trees(file):
            text, split = rows[0]["tree"], rows[0]["split"]
            if split != Split.TRAIN and not choice.includes_test:
                left_out[TEST] += len(rows)
                continue
            tree = read_tokens(text) if with_tokens else read_shortened(text)
            if PLAIN_PROMPT in tree.prompts:
                left_out[HINTED] += len(rows)
                continue
            advantages = {
                row["leaf"]: decode_recorded(row["advantages"]) for row in rows if row["advantages"] is not None
            }
            yield RecordedTree(tree=tree, label=choice.label, step=file_step(file), advantages=advantages)


def _rows_of_trees(file: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each tree; the first one of them holds the tree."""
    rows: list[dict[str, Any]] = []
    for row in _rows(file):
        if row["tree"] is not None and rows:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq  # heavy: loaded where it is needed

    with pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=list(_COLUMNS)):
            yield from batch.to_pylist()


def read_tokens(text: str) -> Tree:
    """Read a tree whose outcomes keep their rewards, and neither actions nor observations."""
    return tree_from_json(decode_recorded(text), read_outcome=_rewarded)


def _rewarded(outcome: Mapping[str, Any]) -> TurnOutcome:
    return TurnOutcome(action=_NO_ACTION, observation=_NO_OBSERVATION, reward=reward_from_json(outcome["reward"]))


def read_shortened(text: str) -> Tree:
    """Read a tree whose edges keep one token in place of a prompt, and one of what the policy sampled.

    Tokens are most of the text, and conversations do not need them. They are cut before the text is decoded.
    """
    data = _decode_shortened(text)
    if data is None:
        return tree_from_json(decode_recorded(text))
    return tree_from_json(data, read_segments=_SHORTENED.__getitem__)


def _decode_shortened(text: str) -> dict[str, Any] | None:
    """Decode a tree with names in place of segments; None: the episode has a key of this name, too."""
    first, *others = text.split(_SEGMENTS)
    pieces = [first]
    for other in others:
        segments, end, rest = other.partition(_AFTER_SEGMENTS)
        if not end:
            return None
        pieces += (f'"segments": "{_shortened(segments)}", "cost": {{', rest)
    try:
        data: dict[str, Any] = decode_recorded("".join(pieces))
    except ValueError:
        return None
    return data if len(data["nodes"]) == len(others) else None


def _shortened(segments: str) -> str:
    is_sampled = '{"origin": "POLICY"' in segments  # in a text of the episode, the quotation marks would be escaped
    if segments.startswith('{"origin": "PROMPT"'):
        return "prompt, sampled" if is_sampled else "prompt"
    return "sampled" if is_sampled else "other" if segments else ""
