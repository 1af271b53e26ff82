"""The journal gives a resumed run each turn that was sampled, once, and only where all that decides it is the same."""

import asyncio
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Policy, Sampling, VersionSpan
from envgym.errors import RunError
from envgym.trainer.rollout.journal import TurnJournal

FOUND = Generation(
    token_ids=(5, 6),
    behavior_logprobs=(-0.1, -2.5e-07),
    raw_logprobs=(-0.30000000000000004, -1.0),
    finish_reason=FinishReason.STOP,
    policy_version=3,
    version_spans=(VersionSpan(3, 1), VersionSpan(4, 1)),
    num_prefilled=7,
    top_logprobs=(((5, -0.1), (9, -3.0)), ((6, 0.0),)),
)
ASKED = GenerateRequest(token_ids=(1, 2, 3), sampling=Sampling(), seed=11)


def answering(generation: Generation) -> ScriptedPolicy:
    return ScriptedPolicy(lambda request: generation)


def journal(folder: Path, *, version: int = 4, staleness: int = 1, run: str = "this") -> TurnJournal:
    return TurnJournal(folder, run=run, version=version, staleness=staleness)


def ask(policy: Policy, request: GenerateRequest = ASKED) -> Generation:
    return asyncio.run(policy.generate(request))


def written(folder: Path, generation: Generation = FOUND) -> Path:
    first = journal(folder)
    ask(first.around(answering(generation)))
    first.close()
    (file,) = folder.glob("turns-*")
    return file


logprobs = st.floats(max_value=0, allow_nan=False)


@given(
    tokens=st.lists(st.tuples(st.integers(0, 2**31), logprobs, logprobs), max_size=4),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    version=st.integers(0, 2**40),
    is_full=st.booleans(),
    has_raw=st.booleans(),
)
def test_a_turn_is_read_as_it_was(
    tokens: list[tuple[int, float, float]], reason: FinishReason, version: int, is_full: bool, has_raw: bool
) -> None:
    ids, behavior, raw = ([tuple(part) for part in zip(*tokens, strict=True)] or [(), (), ()])[:3]
    generation = Generation(
        token_ids=tuple(map(int, ids)),
        behavior_logprobs=behavior,
        raw_logprobs=raw if has_raw else None,
        finish_reason=reason,
        policy_version=version,
        context_is_full=is_full,
    )
    assert Generation.from_data(generation.to_data()) == generation


def test_what_was_sampled_is_found_once_and_nothing_else_is(tmp_path: Path) -> None:
    written(tmp_path)
    again, other = journal(tmp_path), replace(FOUND, token_ids=(8, 8))
    policy = answering(other)
    around = again.around(policy)
    for changed in (
        replace(ASKED, seed=12),
        replace(ASKED, token_ids=(1, 2, 4)),
        replace(ASKED, sampling=Sampling(temperature=0.5)),
    ):
        assert ask(around, changed) == other
    assert len(policy.requests) == 3
    assert ask(around) == FOUND
    assert len(policy.requests) == 3
    assert again.take_metrics() == {"journal/turns": 1, "journal/tokens": 2}
    assert ask(around) == other, "it is found once"
    assert again.take_metrics() == {}
    again.close()
    (file,) = tmp_path.glob("turns-*")
    assert len(file.read_text().splitlines()) == 1 + 3 + 1


def test_what_was_found_is_kept_for_the_next_crash(tmp_path: Path) -> None:
    written(tmp_path)
    for _ in range(3):
        again = journal(tmp_path)
        assert ask(again.around(answering(FOUND))) == FOUND
        assert again.take_metrics()["journal/turns"] == 1
        again.close()


def test_a_line_that_a_crash_cut_is_left_out_wherever_it_was_cut(tmp_path: Path) -> None:
    file = written(tmp_path)
    line = file.read_bytes()
    for length in range(len(line)):
        file.write_bytes(line + line[:length])
        again = journal(tmp_path)
        assert file.read_bytes() == line
        assert ask(again.around(answering(FOUND))) == FOUND
        again.add(replace(ASKED, seed=12), FOUND)
        again.close()
        assert len(file.read_text().splitlines()) == 2


@pytest.mark.parametrize("version, staleness, is_kept", [(4, 0, True), (5, 1, True), (5, 0, False), (3, 5, False)])
def test_turns_of_unknown_or_old_weights_go(tmp_path: Path, version: int, staleness: int, is_kept: bool) -> None:
    """The turn's newest token is of version 4."""
    file = written(tmp_path)
    again = journal(tmp_path, version=version, staleness=staleness)
    assert (again.find(ASKED) is not None, file.exists()) == (is_kept, is_kept)


def test_a_checkpoint_frees_what_no_group_can_use(tmp_path: Path) -> None:
    first = journal(tmp_path, version=0)
    for version in range(4):
        first.add(ASKED, replace(FOUND, policy_version=version, version_spans=()))
    first.forget(3)  # with staleness 1, the groups that follow may hold tokens of version 2
    assert sorted(path.name for path in tmp_path.glob("turns-*")) == ["turns-00000002.jsonl", "turns-00000003.jsonl"]
    first.add(ASKED, replace(FOUND, policy_version=3, version_spans=()))
    first.close()
    assert len((tmp_path / "turns-00000003.jsonl").read_text().splitlines()) == 2


def test_what_an_engine_gave_up_is_not_kept(tmp_path: Path) -> None:
    first = journal(tmp_path)
    ask(first.around(answering(replace(FOUND, finish_reason=FinishReason.ABORT))))
    assert not list(tmp_path.glob("turns-*"))


def test_a_journal_of_another_run_is_told_and_left_alone(tmp_path: Path) -> None:
    file = written(tmp_path)
    before = file.read_bytes()
    with pytest.raises(RunError, match=r"journal must be of the run that, got this \(.*\); move it elsewhere; what is"):
        journal(tmp_path, run="that", version=9)
    assert file.read_bytes() == before


def test_a_line_that_is_none_is_left_out(tmp_path: Path) -> None:
    file = written(tmp_path)
    line = file.read_text()
    file.write_text("\0\0\n" + '["00",{}]\n' + "[1]\n" + line)
    assert journal(tmp_path).find(ASKED) == FOUND


def test_turns_of_weights_that_were_replaced_are_dropped(tmp_path: Path) -> None:
    first = journal(tmp_path)
    first.add(ASKED, FOUND)
    first.drop(4)
    first.add(replace(ASKED, seed=12), FOUND)
    first.close()
    again = journal(tmp_path)
    assert again.find(ASKED) is None
    assert again.find(replace(ASKED, seed=12)) == FOUND


def test_a_disk_that_is_full_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    first = journal(tmp_path)
    (tmp_path / "turns-00000004.jsonl").mkdir()  # nothing can be written there
    policy = first.around(answering(FOUND))
    with pytest.warns(UserWarning, match=r"journal must be writable, got .*; make room"):
        assert ask(policy) == FOUND
    assert ask(policy) == FOUND


def worker_journal(folder: Path, worker: str) -> TurnJournal:
    return TurnJournal(folder, run="this", version=4, staleness=1, worker=worker)


def test_workers_read_what_each_of_them_wrote_and_drop_nothing(tmp_path: Path) -> None:
    journal(tmp_path).close()
    (tmp_path / "turns-00000009.jsonl").touch()
    one = worker_journal(tmp_path, "rollout-worker-0")
    ask(one.around(answering(FOUND)))
    (file,) = tmp_path.glob("turns-*.rollout-worker-0.jsonl")
    whole = file.read_bytes()
    file.write_bytes(whole + b"[cut")
    other = worker_journal(tmp_path, "rollout-worker-1")
    assert ask(other.around(answering(replace(FOUND, token_ids=(8, 8))))) == FOUND
    assert other.take_reused() == (1, 2)
    assert file.read_bytes() == whole + b"[cut"  # only its own worker may mend it
    worker_journal(tmp_path, "rollout-worker-0").close()
    assert file.read_bytes() == whole
    assert (tmp_path / "turns-00000009.jsonl").exists()
    one.close()


def test_a_worker_reads_the_turns_of_one_that_is_lost(tmp_path: Path) -> None:
    journal(tmp_path).close()
    one, other = (worker_journal(tmp_path, f"rollout-worker-{number}") for number in range(2))
    ask(one.around(answering(FOUND)))
    fresh = replace(FOUND, token_ids=(8, 8))
    assert other.find(ASKED) is None
    other.read_turns_of("rollout-worker-2")
    assert other.find(ASKED) is None
    other.read_turns_of("rollout-worker-0")
    assert ask(other.around(answering(fresh))) == FOUND
    assert ask(other.around(answering(fresh))) == fresh
    one.close()
    other.close()


def test_a_worker_reads_what_another_has_written_since_and_what_a_new_file_of_the_name_has(tmp_path: Path) -> None:
    journal(tmp_path).close()
    one, other = (worker_journal(tmp_path, f"rollout-worker-{number}") for number in range(2))
    for seed in (1, 2):
        ask(one.around(answering(FOUND)), replace(ASKED, seed=seed))
        other.read_turns_of("rollout-worker-0")
        assert other.find(replace(ASKED, seed=seed)) == FOUND
        assert other.find(replace(ASKED, seed=1)) is None  # it was found before
    ask(one.around(answering(FOUND)), replace(ASKED, seed=3))
    other.read_turns_of("rollout-worker-0")
    one.close()
    (file,) = tmp_path.glob("turns-*")
    file.unlink()
    assert other.find(replace(ASKED, seed=3)) is None  # it was dropped
    newer = replace(FOUND, token_ids=(8, 8), behavior_logprobs=(-0.2, -0.2))
    for seed in (4, 5, 6, 7):
        ask(one.around(answering(newer)), replace(ASKED, seed=seed))
    other.read_turns_of("rollout-worker-0")
    assert [other.find(replace(ASKED, seed=seed)) for seed in (4, 5, 6, 7)] == [newer] * 4
    one.close()
    other.close()


def test_the_turns_of_a_journal_are_not_in_memory(tmp_path: Path) -> None:
    many = replace(FOUND, token_ids=(5,) * 9999, behavior_logprobs=(-0.1,) * 9999, raw_logprobs=None)
    long = replace(many, version_spans=(), top_logprobs=None)
    file = written(tmp_path, long)
    for seed in range(20):
        again = journal(tmp_path)
        ask(again.around(answering(long)), replace(ASKED, seed=1000 + seed))
        again.close()
    assert file.stat().st_size + sum(item.stat().st_size for item in tmp_path.glob("turns-*")) > 2_000_000
    tracemalloc.start()
    read = journal(tmp_path)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000
    assert read.find(replace(ASKED, seed=1019)) == long
    read.close()


def test_the_run_drops_the_files_of_its_workers_with_its_own(tmp_path: Path) -> None:
    run = journal(tmp_path)
    worker = worker_journal(tmp_path, "rollout-worker-0")
    for version in (3, 4, 6):
        of_version = replace(FOUND, policy_version=version, version_spans=())
        ask(worker.around(answering(of_version)), replace(ASKED, seed=version))
    worker.close()

    def versions() -> list[int]:
        return sorted(int(path.name[6:14]) for path in tmp_path.glob("turns-*"))

    run.forget(5)
    assert versions() == [4, 6]
    run.drop(6)
    assert versions() == [4]
    again = journal(tmp_path)
    assert again.find(replace(ASKED, seed=4)) is not None
    for item in (run, again):
        item.close()
