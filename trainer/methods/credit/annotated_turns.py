"""A turn's annotated number as its advantage: of an utterance critic, or of a model of your own."""

from collections.abc import Sequence

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.trainer.methods.annotators.base import turn_values
from envgym.trainer.methods.credit.paths import turn_credit
from envgym.trainer.methods.protocols import CreditContext, TrajectoryCredit
from envgym.trainer.methods.requirements import Choices, Fault


class AnnotatedTurns(Settings):
    """Take A_{i,t} = v_{i,t}, the value annotated on turn t; nothing is compared, so a group of one trains, too.

    An episode of which a turn lacks a value, because its annotation failed, does not train. Source: 2402.19446
    (ArCHer), with the advantages of its critic and `loss=reinforce`.
    """

    annotation: str = "critic"
    """Name of the annotations."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require that rewards, which it does not read, choose no groups and are not shaped."""
        if getattr(choices.filter, "drops_equal_rewards", False):
            must = "keep groups with zero reward variance for credit annotated_turns, which compares no rewards"
            return Fault("filter", must, choices.names["filter"], "set filter.name=keep_all")
        must = "be none with credit annotated_turns, which reads annotations instead of rewards"
        is_unshaped = getattr(choices.shaping, "is_identity", False)
        do = "set shaping.name=none, or choose another credit"
        return Fault.unless(is_unshaped, "shaping", must, choices.names["shaping"], do)

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return one credit per valid episode with values."""
        del context
        values = [(episode, turn_values(episode, self.annotation)) for group in groups for episode in group.valid]
        return [turn_credit(episode, of_turns) for episode, of_turns in values if of_turns is not None]
