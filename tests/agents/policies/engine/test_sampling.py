"""Sampling by inversion: hand cases, the distribution it samples from, and independence of the rest of the batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.agents.policies.engine.sampling import SamplingRules, sample
from envgym.agents.protocols import Sampling

CPU = torch.device("cpu")
# Probabilities 0.5, 0.25, 0.125, 0.125: cumulative 0.5, 0.75, 0.875, 1.
LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.125]]))


def draw(logits: Tensor, samplings: list[Sampling], numbers: list[float]) -> tuple[list[int], list[float], list[float]]:
    rules = SamplingRules.of(samplings, logits.shape[-1], CPU)
    found = sample(logits, rules, torch.tensor(numbers, dtype=torch.float64))
    return found.tokens.tolist(), found.behavior_logprobs.tolist(), found.raw_logprobs.tolist()


@pytest.mark.parametrize(
    "number, token", [(0.0, 0), (0.4999, 0), (0.5001, 1), (0.7499, 1), (0.7501, 2), (0.8751, 3), (1 - 2**-53, 3)]
)
def test_a_number_picks_the_token_whose_share_it_falls_in(number: float, token: int) -> None:
    tokens, behavior, raw = draw(LOGITS, [Sampling()], [number])
    assert tokens == [token]
    assert behavior == raw == pytest.approx([LOGITS[0, token].item()], abs=1e-6)


def test_temperature_sharpens_what_is_sampled_from_and_not_the_raw_log_prob() -> None:
    # T = 1/2 squares the probabilities: 1/4, 1/16, 1/64, 1/64, together 22/64; shares 16/22, 4/22, 1/22, 1/22.
    tokens, behavior, raw = draw(LOGITS, [Sampling(temperature=0.5)], [0.8])
    assert tokens == [1]
    assert behavior == pytest.approx([math.log(4 / 22)], abs=1e-6)
    assert raw == pytest.approx([math.log(0.25)], abs=1e-6)


def test_top_k_keeps_the_largest_and_renormalises() -> None:
    tokens, behavior, raw = draw(LOGITS, [Sampling(top_k=2)], [0.99])
    assert tokens == [1]
    assert behavior == pytest.approx([math.log(1 / 3)], abs=1e-6)  # 0.25 / 0.75
    assert raw == pytest.approx([math.log(0.25)], abs=1e-6)


def test_of_equal_logits_top_k_keeps_the_smaller_ids() -> None:
    tokens, behavior, _ = draw(torch.zeros(1, 4), [Sampling(top_k=1)], [0.99])
    assert (tokens, behavior) == ([0], [0.0])


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    # 0.5 < 0.6 <= 0.75: two tokens; 0.5 >= 0.5: one.
    assert draw(LOGITS, [Sampling(top_p=0.6)], [0.99])[0] == [1]
    assert draw(LOGITS, [Sampling(top_p=0.5)], [0.99])[0] == [0]
    assert draw(LOGITS, [Sampling(top_p=1e-9)], [0.99])[:2] == ([0], [0.0])


def test_top_p_counts_in_what_top_k_left() -> None:
    # top-k 2 leaves 2/3 and 1/3: top-p 0.6 keeps the first alone, though 0.5 < 0.6 of the whole.
    assert draw(LOGITS, [Sampling(top_k=2, top_p=0.6)], [0.99])[0] == [0]


def test_greedy_takes_the_largest_with_certainty() -> None:
    tokens, behavior, raw = draw(LOGITS, [Sampling(temperature=0.0, top_k=3)], [0.99])
    assert (tokens, behavior) == ([0], [0.0])
    assert raw == pytest.approx([math.log(0.5)], abs=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_show_in_the_raw_log_prob(bad: float) -> None:
    logits = torch.cat([LOGITS, LOGITS])
    logits[0, 2] = bad
    _, _, raw = draw(logits, [Sampling(), Sampling()], [0.3, 0.3])
    assert [math.isfinite(value) for value in raw] == [False, True]


def test_frequencies_are_the_probabilities() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 8)
    rules = Sampling(temperature=0.7, top_k=6, top_p=0.9)
    numbers = np.random.default_rng(0).random(40_000)
    rows = logits.expand(len(numbers), -1)
    found = sample(rows, SamplingRules.of([rules] * len(numbers), 8, CPU), torch.from_numpy(numbers))
    counts = torch.bincount(found.tokens, minlength=8) / len(numbers)
    stated = torch.zeros(8)
    stated[found.tokens] = found.behavior_logprobs.exp()
    assert stated.sum().item() == pytest.approx(1.0, abs=1e-5), "the stated distribution is one"
    assert (stated > 0).sum() < 8, "something was cut"
    # The standard error of a frequency is at most sqrt(0.25 / 40,000) = 0.0025.
    assert (counts - stated).abs().max().item() < 5 * 0.0025


@pytest.mark.parametrize("vocabulary", [256, 257, 1000])
def test_of_many_tokens_a_number_picks_the_first_whose_cumulative_probability_exceeds_it(vocabulary: int) -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(1, vocabulary)
    logits[0, ::3] = -torch.inf  # what cannot be sampled, also at the ends of blocks
    logits[0, 254:] = -torch.inf
    logits[0, 700:702] = 0.0
    cumulative = logits.double().softmax(-1).cumsum(-1)[0]
    # Numbers within, at both ends, and between every two tokens.
    numbers = torch.cat(
        [torch.rand(200, dtype=torch.float64), torch.tensor([0.0, 1 - 2**-53]), cumulative[cumulative < 1]]
    )
    rules = SamplingRules.of([Sampling()] * len(numbers), vocabulary, CPU)
    tokens = sample(logits.expand(len(numbers), -1), rules, numbers).tokens
    assert logits[0, tokens].isfinite().all()
    shares = cumulative.diff(prepend=cumulative.new_zeros(1))
    ends = torch.stack([cumulative[tokens], (cumulative - shares)[tokens]])
    at_an_end = (ends - numbers).abs().amin(0) < 1e-6  # rounding of float32
    expected = torch.searchsorted(cumulative, numbers, right=True)
    assert ((tokens == expected) | at_an_end).all()
    assert (tokens == expected)[:200].float().mean() > 0.98


rules_of_a_row = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 50]),
)


@given(rows=st.lists(st.tuples(rules_of_a_row, st.floats(0, 0.999), st.integers(0, 99)), min_size=2, max_size=6))
def test_what_a_row_gets_does_not_depend_on_the_others(rows: list[tuple[Sampling, float, int]]) -> None:
    logits = torch.stack([torch.randn(16, generator=torch.Generator().manual_seed(seed)) for _, _, seed in rows])
    together = draw(logits, [rules for rules, _, _ in rows], [number for _, number, _ in rows])
    for place, (rules, number, _) in enumerate(rows):
        alone = draw(logits[place : place + 1], [rules], [number])
        assert [part[place] for part in together] == [part[0] for part in alone]
