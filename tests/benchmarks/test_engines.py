"""The benchmark of engines: equal lengths for all of them, and what is counted."""

import asyncio

import pytest

from benchmarks._clock import timed
from benchmarks._talks import CELLS, Count, Ledger, Shape, Talk, entry, lead, make_talk, number_of, question, score
from benchmarks.engines import Generate, Run, Transformers, measure, summary
from envgym.agents.models.loading import LoadedModel, load
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest
from envgym.agents.rendering.factory import AutoRendererFactory

TOKENS = 3


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load("tiny")


def short_talk(loaded: LoadedModel, roots: int) -> Talk:
    """Return a talk without the long instructions."""
    talk = make_talk(AutoRendererFactory()(loaded.tokenizer), roots)
    return Talk([opening[-40:] for opening in talk.openings], [reply[-4:] for reply in talk.replies])


def test_a_cell_samples_every_context_once_for_each_branch() -> None:
    assert CELLS["E16"].rows == (16, 16, 16)
    assert CELLS["tree"].rows == (4, 16, 64)


def test_texts_with_numbers_of_four_digits_are_equally_long() -> None:
    numbers = (1000, 4821, 9999)
    assert len({len(question(number)) for number in numbers}) == 1
    assert len({len(entry(number)) for number in numbers}) == 1
    assert 0 <= score("barrels") < 1
    assert number_of((4500, 4501)) == 1001  # 1000 + 9001 % 9000


@pytest.mark.parametrize("shape", [Shape(2, 1, 3), Shape(1, 2, 3)])
def test_all_engines_see_contexts_of_the_same_lengths(loaded: LoadedModel, shape: Shape) -> None:
    talk = short_talk(loaded, shape.roots)
    plain = measure(Generate(loaded.model), talk, shape, tokens=TOKENS)
    policy = measure(Transformers(loaded.model), talk, shape, tokens=TOKENS)
    # turn t has 40 + t (3 + 4) tokens before it: 40, 47, 54
    assert plain.did.prefilled == sum(rows * length for rows, length in zip(shape.rows, (40, 47, 54), strict=True))
    assert plain.did.longest == policy.did.longest == 54
    assert plain.did.sampled == policy.did.sampled == TOKENS * sum(shape.rows)
    assert policy.did.prefilled < plain.did.prefilled
    assert set(plain.phases) == set(policy.phases) == {"prefill", "decode", "other"}


def test_a_policy_is_led_through_contexts_that_hold_what_it_said() -> None:
    talk = Talk(openings=[(1, 2)], replies=[(7,), (8,)])
    seen: list[tuple[int, ...]] = []

    def speak(request: GenerateRequest) -> tuple[int, ...]:
        seen.append(request.token_ids)
        return (5, 6)

    count = asyncio.run(lead(ScriptedPolicy(speak), talk, Shape(1, 2, 2), tokens=2))
    assert sorted(seen) == [(1, 2), (1, 2), *[(1, 2, 5, 6, 7)] * 2, *[(1, 2, 5, 6, 8)] * 2]
    assert count.sampled == 12
    assert count.longest == 5


def test_the_best_repeat_counts() -> None:
    count = Count(sampled=100, prefilled=0, longest=0)
    runs = {
        "generate": [Run(10.0, 9.0, count, {}), Run(20.0, 8.0, count, {})],
        "transformers": [Run(4.0, 4.0, count, {})],
        "vllm": [Run(2.0, 0.1, count, {})],
    }
    found = summary(runs)
    assert found["to_generate"] == {"generate": 1.0, "transformers": 2.5, "vllm": 5.0}
    assert found["cpu_to_generate"] == {"generate": 1.0, "transformers": 2.0}  # 8 / 4


def test_a_clock_is_taken_off_again() -> None:
    before = Ledger.look_up
    with timed(Ledger, {"look_up": "tool"}) as spent:
        assert Ledger().look_up(1000) == entry(1000)
        assert spent["tool"] > 0
    assert Ledger.look_up is before
