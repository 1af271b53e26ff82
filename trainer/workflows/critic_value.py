"""The critic of a training run as a `ValueFn`: it leads a search, or chooses its answer, without a look at rewards.

`--search-set value.name=critic --search-set value.run=RUN` takes that of a run's newest checkpoint.
"""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from envgym.agents.models.loading import prepare_device
from envgym.agents.policies.backends import autocast_dtype
from envgym.agents.search.scorers import SearchObservation
from envgym.config.plugins import Choice
from envgym.errors import InvalidInput, RunError
from envgym.runs.directory import RunDirectory
from envgym.trainer.batch.rows import TrainRow, scored_row
from envgym.trainer.learner.checkpoint import load_critic, part_folder, require_checkpoint
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.settings import CriticSettings
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.methods.protocols import CREDIT, CriticCredit
from envgym.trainer.models.base import ModelContext
from envgym.trainer.models.policy_model import load_model
from envgym.trainer.settings import settings_of_run

_KEPT = 4
"""Critics that are held in memory at a time."""


@dataclass(slots=True)
class _Batch:
    rows: list[TrainRow] = field(default_factory=list)
    values: list[float] | None = None
    """Once they were computed."""


class CriticValue:
    """Say what a critic expects of conversations: of a place, and of an episode that is over.

    Of a place it is the value before the next token, as credit over turns learns it. Of an episode that is over it is
    the value before its last token, when all but that was said: behind the end, a critic expects nothing.
    Rewards are not looked at. Calls that come together are computed together, each shared prefix once.
    """

    is_oracle = False

    def __init__(
        self,
        forward: ForwardPass,
        critic: Critic,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_positions: int | None = None,
    ) -> None:
        """Take over a critic.

        Args:
            forward: of the model that it reads.
            critic: its head fits the model.
            tokenizer: of the model.
            max_positions: longest row that the model can read; None: any.
        """
        self._forward, self._critic, self._tokenizer = forward, critic, tokenizer
        self._max_positions = max_positions
        self._open = _Batch()
        """Takes calls until one of them goes on."""
        self.tokens_read = 0
        """Tokens that were computed so far."""

    async def __call__(self, seen: Sequence[SearchObservation]) -> list[float]:
        """Return the value of each. Raises: InvalidInput: one is longer than the model can read."""
        rows = self._rows([item.token_ids for item in seen], [item.is_over for item in seen])
        batch, first = self._open, len(self._open.rows)
        batch.rows += rows
        # Behind all who are about to ask, and on the loop itself: what is computed together does not depend on timing.
        await asyncio.sleep(0)
        if batch is self._open:
            self._open = _Batch()
        if batch.values is None:
            batch.values = self._values(batch.rows)
        return batch.values[first : first + len(rows)]

    def compute_values(self, token_ids: Sequence[tuple[int, ...]], is_over: Sequence[bool]) -> list[float]:
        """Return the value of each prefix. Raises: InvalidInput: as `__call__`."""
        return self._values(self._rows(token_ids, is_over))

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Refuse tokens of another kind. Raises: InvalidInput."""
        ours, theirs = self._tokenizer.get_vocab(), tokenizer.get_vocab()
        if ours != theirs:
            same = len(ours.items() & theirs.items())
            got = f"{same} of {len(theirs)} tokens alike"
            do = "search with the model that the critic was trained on, or with one of its tokenizer"
            raise InvalidInput.of("the critic's tokenizer", "be that of the policy", got, where="value", do=do)

    def _rows(self, token_ids: Sequence[tuple[int, ...]], is_over: Sequence[bool]) -> list[TrainRow]:
        """Return each prefix with the place of its value last: it is said before a token, whichever that is."""
        prefixes = [ids if over else (*ids, 0) for ids, over in zip(token_ids, is_over, strict=True)]
        rows = [scored_row(ids, first=len(ids) - 1) for ids in prefixes]
        longest = max(map(len, rows), default=0)
        if self._max_positions is not None and longest > self._max_positions:
            do = "lower agent.max_context_tokens, or train the critic on a model with more positions"
            must = f"hold at most {self._max_positions} tokens for this critic"
            raise InvalidInput.of("conversation", must, longest, where="value", do=do)
        return rows

    def _values(self, rows: list[TrainRow]) -> list[float]:
        if not rows:
            return []
        batches = self._forward.micro_batches(rows, range(len(rows)))
        self.tokens_read += sum(batch.num_tokens for batch in batches)
        said_NT = self._forward.apply_head(rows, batches, self._critic.values)
        return [float(said_NT[number, len(row) - 1]) for number, row in enumerate(rows)]


def critic(run: str) -> CriticValue:
    """Return the critic of a training run's newest checkpoint; a checkpoint is read once.

    Args:
        run: Directory of the training run.

    Raises: RunError: there is no such run, it has no checkpoint, or none with a critic that judges finished episodes.
    """
    path = Path(run)
    return _read(path.resolve(), require_checkpoint(path).resolve())


class CriticModel(Model):
    """The critic of a training run as a named model: it scores the turns of finished episodes."""

    def __init__(self, context: ModelContext, *, run: str) -> None:
        """Read the critic of the newest checkpoint.

        Args:
            context: Of the run that trains.
            run: Directory of the training run whose critic it is.

        Raises: RunError: as `critic`.
        """
        self._tokenizer = context.tokenizer
        self._critic = critic(run)
        self._one_at_a_time = threading.Lock()

    def check(self) -> None:
        """See that it reads the policy's tokens. Raises: InvalidInput: its tokenizer is another."""
        self._critic.check_tokenizer(self._tokenizer)

    async def compute_values(self, token_ids: Sequence[tuple[int, ...]], is_over: Sequence[bool]) -> list[float]:
        """Return the value of each prefix. Raises: InvalidInput: one is longer than the model can read."""

        def work() -> list[float]:
            with self._one_at_a_time:
                return self._critic.compute_values(token_ids, is_over)

        return await asyncio.to_thread(work)


@lru_cache(maxsize=_KEPT)
def _read(run: Path, checkpoint: Path) -> CriticValue:
    settings = settings_of_run(RunDirectory.open(run), "credit")
    _check_credit(settings.credit, run)
    device = prepare_device(settings.engine.device, None)
    section, of_model, folder = settings.critic or CriticSettings(), settings.model.on(device.type), checkpoint
    if section.model is not None:
        of_model, folder = of_model.model_copy(update={"lora": None}), part_folder(checkpoint, f"model_{section.model}")
    model, tokenizer = load_model(of_model, device, folder)
    value = Critic(model, section, settings.optim, device=device)
    load_critic(folder, value)
    forward = ForwardPass(model, settings.optim, device=device, autocast=autocast_dtype(of_model))
    config = model.config.get_text_config()
    return CriticValue(forward, value, tokenizer, max_positions=getattr(config, "max_position_embeddings", None))


def _check_credit(choice: Choice, run: Path) -> None:
    """See that the run trained a critic, also on what the end of an episode looks like. Raises: RunError."""
    name, credit = choice.name, CREDIT.build(choice)
    do = "train one with credit.name=gae_token or gae_bilevel"
    if not isinstance(credit, CriticCredit):
        raise RunError.of("run", "have trained a critic", f"credit {name}", where=str(run), do=do)
    if not credit.trains_at_turn_ends:
        raise RunError.of("critic", "have learned at the ends of turns, too", f"credit {name}", where=str(run), do=do)
