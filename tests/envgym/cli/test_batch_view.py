"""A batch in the terminal: who wrote a token is its colour, and underlined is what trains."""

from dataclasses import replace

import pytest

from envgym.cli.batch_view import _segment_line, overfit_verdict
from envgym.core.segments import Origin
from envgym.trainer.workflows.overfit import OverfitPoint
from tests.support.example_trees import policy, seg


def point(updates: int, positive: float | None, negative: float | None) -> OverfitPoint:
    return OverfitPoint(
        updates=updates, surrogate=0.0, logprob_positive=positive, logprob_negative=negative, ratio_mean=1.0,
        ratio_max=1.0, grad_norm=None,
    )  # fmt: skip


def test_trained_tokens_are_underlined_and_no_other() -> None:
    line = _segment_line(policy(10, 11, 12), [False, True, True], [0.0, 0.5, 0.5])
    assert line.plain == "  POLICY   A +0.50        <10><11><12>"
    underlined = [line.plain[span.start : span.end] for span in line.spans if "underline" in str(span.style)]
    assert underlined == ["<11><12>"]


def test_bytes_of_a_character_are_shown_as_the_character_and_no_other_bytes() -> None:
    strings = ("1 ", "\\xe2", "\\x82", "\\xac", " \\xe4\\xbd", "\\xa0", "\\xc9", "\\", "x", "4", "1", "\ud800")
    segment = replace(seg(Origin.TOOL, *range(len(strings))), token_strings=strings)
    none = [False] * len(strings)
    assert _segment_line(segment, none, [0.0] * len(strings)).plain.split() == ["TOOL", "1", "€", "你\ufffd\\x41?"]


def test_advantages_that_differ_are_a_range() -> None:
    assert "A -0.50..+0.25" in _segment_line(policy(10, 11), [True, True], [0.25, -0.5]).plain


@pytest.mark.parametrize("origin", [Origin.PROMPT, Origin.TOOL, Origin.TEMPLATE, Origin.INJECTED])
def test_what_does_not_train_has_no_advantage(origin: Origin) -> None:
    line = _segment_line(seg(origin, 1, 2), [False, False], [0.0, 0.0])
    assert line.plain.split() == [origin.value, "<1><2>"]
    assert not any("underline" in str(span.style) for span in line.spans)


def test_every_origin_has_a_colour_of_its_own() -> None:
    assert len({str(_segment_line(seg(origin, 1), [False], [0.0]).style) for origin in Origin}) == len(Origin)


@pytest.mark.parametrize(
    "first,last,good",
    [
        ((-2.0, -2.0), (-1.0, -3.0), True),
        ((-2.0, -2.0), (-1.0, -1.5), True),  # good tokens rose by more than bad ones
        ((-2.0, -2.0), (-3.0, -1.0), False),
        ((None, -2.0), (None, -3.0), True),
        ((-2.0, None), (-2.5, None), False),
    ],
)
def test_verdict_compares_good_rows_with_bad_ones(
    first: tuple[float | None, float | None], last: tuple[float | None, float | None], good: bool
) -> None:
    text = overfit_verdict([point(0, *first), point(9, *last)])
    assert text.endswith("in the right direction") is good
