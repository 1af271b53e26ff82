"""Decontamination: overlap worked by hand, its laws, and which tasks are left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput
from envgym.trainer.methods.decontamination import DecontaminatedTasks, HeldOutTexts

WORDS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12).map(" ".join)


def test_overlap_counts_the_held_out_words_in_common_ngrams() -> None:
    texts = HeldOutTexts(["a b c d"], ngram=2)
    assert texts.overlap("x A, b c! y") == 0.75  # a b, b c
    assert texts.overlap("a x b x c x d") == 0.0  # all words, and no two in a row
    assert texts.overlap("c d ... a b") == 1.0
    assert texts.overlap("") == 0.0


def test_the_nearest_held_out_text_counts() -> None:
    assert HeldOutTexts(["a b c d", "a b"], ngram=2).overlap("a b") == 1.0
    assert HeldOutTexts(["a b c d", "e f"], ngram=2).overlap("a b") == 0.5


def test_text_shorter_than_an_ngram_is_one() -> None:
    texts = HeldOutTexts(["what is 3"], ngram=8)
    assert texts.overlap("Tell me: what is 3?") == 1.0
    assert texts.overlap("what is 4") == 0.0
    assert HeldOutTexts(["..."], ngram=8).overlap("anything") == 0.0


@given(text=WORDS, before=WORDS, after=WORDS, ngram=st.integers(1, 8))
def test_a_copied_text_overlaps_whole_whatever_stands_around_it(text: str, before: str, after: str, ngram: int) -> None:
    assert HeldOutTexts([text], ngram=ngram).overlap(f"{before} {text} {after}") == 1.0


@given(held_out=WORDS, text=WORDS, ngram=st.integers(1, 7))
def test_longer_ngrams_never_overlap_more(held_out: str, text: str, ngram: int) -> None:
    longer = HeldOutTexts([held_out], ngram=ngram + 1).overlap(text)
    assert 0 <= longer <= HeldOutTexts([held_out], ngram=ngram).overlap(text) <= 1


def test_ngrams_have_words() -> None:
    with pytest.raises(InvalidInput, match="ngram must be at least 1, got 0"):
        HeldOutTexts([], ngram=0)


class Riddles:
    def __init__(self, *prompts: str, is_endless: bool = False) -> None:
        self._prompts, self._is_endless = prompts, is_endless

    def size(self, split: Split) -> int | None:
        return 1 if split is Split.TEST else None if self._is_endless else len(self._prompts)

    def task(self, split: Split, index: int) -> Task:
        prompt = "how many legs has a spider" if split is Split.TEST else self._prompts[index % len(self._prompts)]
        return Task(id=f"{split}/{index}", prompt=prompt, payload={"prompt": prompt}, split=split)


def clean(source: Riddles, *, share: float = 0.5) -> DecontaminatedTasks:
    held_out = [source.task(Split.TEST, 0)]
    return DecontaminatedTasks(source, held_out, ngram=3, share=share, where="riddles")


COPY, NEAR, OTHER = "Say: how many legs has a spider?", "how many legs has a horse", "what is green"


def test_tasks_that_overlap_are_left_out_and_the_others_keep_their_order() -> None:
    source = Riddles(OTHER, COPY, NEAR, "what is red")
    # NEAR shares "how many legs", "many legs has", "legs has a": 5 of 6 words
    assert [clean(source).task(Split.TRAIN, index).prompt for index in range(2)] == [OTHER, "what is red"]
    assert clean(source).size(Split.TRAIN) == 2
    assert clean(source, share=5 / 6).size(Split.TRAIN) == 3
    assert clean(source).size(Split.TEST) == 1
    assert clean(source).task(Split.TEST, 0) == source.task(Split.TEST, 0)
    with pytest.raises(InvalidInput, match=r"index must lie in \[0, 2\), got 2"):
        clean(source).task(Split.TRAIN, 2)


def test_of_an_endless_supply_the_next_clean_task_comes() -> None:
    tasks = clean(Riddles(COPY, NEAR, OTHER, is_endless=True))
    assert tasks.size(Split.TRAIN) is None
    assert [tasks.task(Split.TRAIN, index).id for index in (0, 2, 3)] == ["train/2", "train/2", "train/5"]


@pytest.mark.parametrize("is_endless", [False, True])
def test_supply_without_a_clean_task_is_refused(*, is_endless: bool) -> None:
    match = r"train tasks must overlap with held-out ones by at most 0\.5, got more in all of .*raise decontamination"
    with pytest.raises(InvalidInput, match=match):
        clean(Riddles(COPY, NEAR, is_endless=is_endless)).task(Split.TRAIN, 0)
