"""From groups to rows: what a credit of the whole batch is shown, and which episodes it may leave out."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from envgym.core.segments import Origin
from envgym.core.trajectory import Group
from envgym.errors import InvalidInput
from envgym.trainer.batch.build import build_batch
from envgym.trainer.batch.rows import TrainRow, first_states
from envgym.trainer.batch.scores import token_scores_of
from envgym.trainer.methods.credit.outcome import DrGrpo, episode_credits
from envgym.trainer.methods.protocols import CreditContext, TrajectoryCredit, TrajectoryValues
from envgym.trainer.methods.scores import Quantity, ScoreRequest
from tests.support.credit_trees import chains, group_of
from tests.support.example_trees import branch_after_a_tool_call, context_rewrite, outcome_group


class Recorder:
    """A credit that keeps what it was shown and credits the first episode of each group with the step."""

    def __init__(self) -> None:
        self.groups: Sequence[Group] = ()
        self.context = CreditContext()

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        self.groups, self.context = groups, context
        return [credit for group in groups for credit in episode_credits(group.valid[:1], [float(context.step)])]


PLACES = ScoreRequest(name="places")


def places(
    rows: Sequence[TrainRow], quantities: Mapping[str, Collection[Quantity]]
) -> dict[tuple[str, Quantity], list[list[float]]]:
    """Number the tokens of rows: 100 a row, 1 a token."""
    numbers = [[100.0 * number + place for place in range(len(row))] for number, row in enumerate(rows)]
    return {(model, quantity): numbers for model, asked in quantities.items() for quantity in asked}


def test_credit_of_a_batch_is_called_once_with_all_groups_and_the_step() -> None:
    credit, groups = Recorder(), [outcome_group(1.0, None, 0.0), outcome_group(0.5)]
    credits, rows = build_batch(groups, credit, once=False, step=7)
    assert list(credit.groups) == groups
    assert credit.context == CreditContext(step=7)
    assert [c.trajectory.reward for c in credits] == [groups[0].valid[0].reward, groups[1].valid[0].reward]
    # what it left out does not train: one row of each group, two sampled tokens behind the four of the prompt
    assert [row.advantages for row in rows] == [(0.0,) * 4 + (7.0, 7.0)] * 2


def test_scores_stand_beside_the_sampled_tokens_of_every_valid_episode_in_order() -> None:
    credit = Recorder()
    groups = [group_of(context_rewrite()), chains([1.0, 0.0])]
    build_batch(groups, credit, once=False, scores=[PLACES], compute=places)
    (rewritten, chained) = credit.context.scores["places"]
    # row 0: 4 of the prompt, 2 sampled; row 1 begins anew with 5 of the prompt, then 2 sampled; row 2: 4, then 1 and 1
    assert rewritten.values == ((), (4.0, 5.0), (105.0, 106.0))
    assert chained.values == ((), (204.0,), (205.0,))
    assert [entry.trajectory for entry in (rewritten, chained)] == [group.valid[0] for group in groups]


def test_trees_of_one_name_in_two_groups_are_two_trees() -> None:
    credit, groups = Recorder(), [outcome_group(1.0), outcome_group(0.0)]
    build_batch(groups, credit, once=False, scores=[PLACES], compute=places)
    assert [entry.values for entry in credit.context.scores["places"]] == [((), (4.0, 5.0)), ((), (104.0, 105.0))]


def test_scores_are_computed_of_every_token_that_the_objective_reads() -> None:
    asked: list[tuple[bool, ...]] = []

    def compute(
        rows: Sequence[TrainRow], quantities: Mapping[str, Collection[Quantity]]
    ) -> dict[tuple[str, Quantity], list[list[float]]]:
        asked.extend(row.scored_mask for row in rows)
        return places(rows, quantities)

    group = group_of(branch_after_a_tool_call())
    requests = [PLACES, ScoreRequest(name="hinted", prompt="hint", without_prompt="own")]
    for origins in ({Origin.POLICY, Origin.TOOL}, {Origin.TOOL}):
        asked.clear()
        _, rows = build_batch([group], DrGrpo(), once=False, origins=origins, scores=requests, compute=compute)
        assert asked == [row.scored_mask for row in rows] * 2
        assert all(any(row.other_tokens) for row in rows)


def test_first_states_have_every_score_that_rows_have() -> None:
    tree = replace(chains([1.0]).trees[0], prompts={"other": (7, 8)})
    _, rows = build_batch([group_of(tree)], DrGrpo(), once=False, scores=[PLACES], compute=places)
    (state,) = first_states(rows, ["other"])
    assert state.scores == {"places": (0.0,) * len(state)}


def test_scores_of_another_number_of_episodes_are_refused() -> None:
    group = outcome_group(1.0, 0.0)
    context = CreditContext(scores={"values": [TrajectoryValues(trajectory=group.valid[0], values=((), (0.0, 0.0)))]})
    with pytest.raises(InvalidInput, match=r"values must be of 2 episodes, got 1 \(CreditContext\.scores\)"):
        context.scores_of("values", [group])


def test_numbers_of_rows_go_back_to_the_sampled_tokens_of_their_episodes() -> None:
    groups = [group_of(context_rewrite()), chains([1.0, 0.0])]
    credits, rows = build_batch(groups, Recorder(), once=False)
    numbers = [[100.0 * number + place for place in range(len(row))] for number, row in enumerate(rows)]
    more = [*numbers, [-1.0]]  # of a demonstration, whose rows stand behind
    doubled = [[2 * value for value in of_row] for of_row in more]
    rewritten, chained = token_scores_of(
        [credit.trajectory for credit in credits], {"entropies": more, "ratios": doubled}
    )
    assert rewritten["entropies"] == ((), (4.0, 5.0), (105.0, 106.0))
    assert chained == {"entropies": ((), (204.0,), (205.0,)), "ratios": ((), (408.0,), (410.0,))}
