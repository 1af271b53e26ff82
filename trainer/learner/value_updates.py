"""Updates of a model and the critic on it by the value loss alone, for a body that is not the policy's."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from envgym.trainer.batch.rows import MicroBatch, TrainRow
from envgym.trainer.learner.critic import PaddedValueTargets, supervised_tokens
from envgym.trainer.learner.learner import Learner, set_learning_rate
from envgym.trainer.learner.train_step import minibatches
from envgym.trainer.metrics.update import Metrics, UpdateMetrics


def value_update(
    learner: Learner,
    rows: Sequence[TrainRow],
    indices: Sequence[int],
    value_targets: PaddedValueTargets,
    *,
    factor: float,
    metrics: UpdateMetrics,
) -> float:
    """Make one update of a model and its critic; return the norm of the model's gradient.

    Args:
        learner: of the model, with a critic.
        rows: with value targets.
        indices: those of the update.
        value_targets: of all rows.
        factor: on the learning rates of both.
        metrics: the micro-batches are added to them.

    Raises: InvalidInput: the loss or the gradient is not finite; nothing is updated then.
    """
    critic = learner.critic
    assert critic is not None, "the caller gives a learner with one"
    set_learning_rate(learner.optimizer, learner.optim.lr * factor)
    set_learning_rate(critic.optimizer, critic.settings.lr * factor)
    denominator = supervised_tokens([rows[number] for number in indices])

    def loss_fn(batch: MicroBatch) -> Float[Tensor, ""]:
        with learner.forward.mode():
            states = learner.forward.hidden_states(batch)
            return critic.loss(states, batch, value_targets, denominator=denominator, metrics=metrics)

    return learner.update(learner.micro_batches(rows, indices), loss_fn)


def value_step(
    learner: Learner, rows: Sequence[TrainRow], *, epochs: int, num_minibatches: int, factor: float
) -> Metrics:
    """Run the updates of one train step by the value loss, in the minibatches of the policy; return metrics.

    Args:
        learner: of the model, with a critic.
        rows: with value targets, some of them at least.
        epochs: passes over the rows.
        num_minibatches: updates that one pass is cut into.
        factor: on the learning rates of model and critic.

    Raises: InvalidInput: as `value_update`.
    """
    value_targets = PaddedValueTargets.of_rows(rows, dtype=learner.forward.dtype, device=learner.device)
    metrics = UpdateMetrics()
    norms = [
        value_update(learner, rows, indices, value_targets, factor=factor, metrics=metrics)
        for _ in range(epochs)
        for indices in minibatches(rows, num_minibatches)
    ]
    return {
        **metrics.value_means(),
        **value_targets.metrics(),
        "critic/grad_norm": sum(norms) / len(norms),
        "critic/lr": learner.optim.lr * factor,
    }
