"""ArCHer's critic: the values of states and utterances, learned off-policy beside the policy, with target networks."""

import asyncio
import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from envgym.core.trajectory import Group, Trajectory
from envgym.seeds import derive_seed, generator
from envgym.trainer.learner.causal_lm import hidden_states, lm_head_of
from envgym.trainer.learner.learner import not_finite
from envgym.trainer.learner.optimizers.base import build_optimizer
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.methods.credit.paths import turn_rewards
from envgym.trainer.methods.replay.buffer import ReplayBuffer, ReplayEntry, keep_leaves
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.models.base import ModelContext
from envgym.trainer.models.trained import LearningModel

_STATE: Final = "critic.pt"
_BUFFER: Final = "buffer"


class TurnValues(NamedTuple):
    """What the heads say of S turns."""

    q_2S: Float[Tensor, "2 S"]
    """Q_1, Q_2 of the utterance in its state."""
    v_2S: Float[Tensor, "2 S"]
    """V_1, V_2 of the state."""


def q_targets(
    rewards_S: Float[Tensor, " S"],
    next_v_2S: Float[Tensor, "2 S"],
    is_last_S: Bool[Tensor, " S"],
    *,
    discount: float,
) -> Float[Tensor, "2 S"]:
    """Return r + discount (1 - last) V_i(s') for each head i, without a minimum over the heads.

    Example: r = 0.5, V(s') = 0.8 and a discount of 0.95 give 1.26.
    """
    return rewards_S + discount * torch.where(is_last_S, 0.0, next_v_2S)


def utterance_advantages(values: TurnValues) -> Float[Tensor, " S"]:
    """Return min(Q_1, Q_2) - min(V_1, V_2). Example: Q = (1.2, 1.0), V = (0.7, 0.9) give 0.3."""
    return values.q_2S.amin(0) - values.v_2S.amin(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    """The turns of some episodes that have sampled tokens, in order, and the rows that they stand in."""

    rows: list[tuple[int, ...]]
    places: list[tuple[int, int, int]]
    """(row, place of the last token before the utterance, place of its last token)."""
    rewards: list[float]
    """What each paid; a turn without sampled tokens adds its own to the turn before."""
    is_last: list[bool]
    of_episodes: list[list[int | None]]
    """Per episode and turn its number here; None: nothing was sampled in it."""

    @classmethod
    def of(cls, episodes: Sequence[Trajectory]) -> "_Turns":
        turns = cls(rows=[], places=[], rewards=[], is_last=[], of_episodes=[])
        for episode in episodes:
            by_turn: dict[int, tuple[int, int, int]] = {}
            for row in episode.rows:
                for place, (trains, turn) in enumerate(zip(row.loss_mask, row.turns, strict=True)):
                    if trains and place:
                        _, before, _ = by_turn.setdefault(turn, (len(turns.rows), place - 1, place))
                        by_turn[turn] = (len(turns.rows), before, place)
                turns.rows.append(row.token_ids)
            numbers: list[int | None] = []
            for turn, reward in enumerate(turn_rewards(episode)):
                if turn in by_turn:
                    numbers.append(len(turns.places))
                    turns.places.append(by_turn[turn])
                    turns.rewards.append(reward)
                    turns.is_last.append(False)
                else:
                    numbers.append(None)
                    if any(number is not None for number in numbers):
                        turns.rewards[-1] += reward
            if any(number is not None for number in numbers):
                turns.is_last[-1] = True
            turns.of_episodes.append(numbers)
        return turns


class _Network(nn.Module):
    """A language model's body with two Q heads on (state, utterance) and two V heads on the state."""

    def __init__(self, model: nn.Module, *, seed: int) -> None:
        super().__init__()
        self.model = model
        weight_VD = lm_head_of(model).weight_VD
        width = weight_VD.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            heads = nn.ModuleList(_mlp(size * width, width) for size in (2, 2, 1, 1))
        self.dtype = torch.promote_types(weight_VD.dtype, torch.float32)
        self.heads = heads.to(device=weight_VD.device, dtype=self.dtype)

    def forward(self, turns: _Turns) -> TurnValues:
        """Return the values of some turns, at least one."""
        device = lm_head_of(self.model).weight_VD.device
        input_ids_BT, attention_mask_BT = _padded(turns.rows, device)
        hidden_BTD = hidden_states(self.model, input_ids_BT=input_ids_BT, attention_mask=attention_mask_BT)
        rows, before, last = torch.tensor(turns.places, device=device).unbind(1)
        q1, q2, v1, v2 = self.heads
        state_SD = hidden_BTD[rows, before].to(self.dtype)
        both_SE = torch.cat([state_SD, hidden_BTD[rows, last].to(state_SD.dtype)], 1)
        q_2S = torch.stack([q1(both_SE), q2(both_SE)]).squeeze(-1)
        return TurnValues(q_2S=q_2S, v_2S=torch.stack([v1(state_SD), v2(state_SD)]).squeeze(-1))


def _mlp(width: int, inner: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, 1))


def _padded(rows: Sequence[tuple[int, ...]], device: torch.device) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    shape = (len(rows), max(map(len, rows)))
    input_ids_BT, mask_BT = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
    for place, row in enumerate(rows):
        input_ids_BT[place, : len(row)] = torch.tensor(row)
        mask_BT[place, : len(row)] = True
    return input_ids_BT.to(device), mask_BT.to(device)


class UtteranceCritic(LearningModel):
    """Learn Q(s, a) and V(s) of whole turns, and score each turn by min Q - min V.

    Each of `updates` steps minimises the sum over two pairs of heads of (Q_i - r - discount V'_i(s'))² on a batch of
    replayed episodes and (V_i - Q'_i(s, a))² on a batch of this step's, where ' marks target networks, which move by
    `polyak` towards the others after each update.

    Source: 2402.19446 (ArCHer) and its authors' code. Deviations: an own copy of the policy's body instead of RoBERTa;
    V learns from this step's utterances, which are the policy's own, where the authors sample new ones at replayed
    states, and the policy learns at the states of this step.
    """

    def __init__(
        self,
        context: ModelContext,
        *,
        path: str | None = None,
        lr: float = 2e-5,
        grad_clip: float = 1.0,
        discount: float = 0.95,
        polyak: float = 0.1,
        updates: int = 50,
        batch: int = 32,
        capacity: int = 100_000,
    ) -> None:
        """Name the model.

        Args:
            context: of the run.
            path: model that it begins with, as `model.name`; null: a copy of the policy.
            lr: learning rate of AdamW.
            grad_clip: largest norm of the gradient.
            discount: of later turns' rewards, in [0, 1].
            polyak: share by which the target networks move, in (0, 1].
            updates: per train step.
            batch: episodes of each of the two batches of an update.
            capacity: episodes that are kept.
        """
        super().__init__(context, path=path, optim=OptimSettings(lr=lr, grad_clip=grad_clip))
        self._discount, self._polyak = discount, polyak
        self._updates, self._batch, self._capacity = updates, batch, capacity
        self._buffer = ReplayBuffer()
        self._network: _Network | None = None

    # ---- its state -----------------------------------------------------------------------------------------------

    @property
    def network(self) -> _Network:
        """Body and heads; built when they are first asked for, at the latest as the run begins."""
        return self._build() if self._network is None else self._network

    def begin(self, folder: Path) -> None:
        """Build the networks, unless a checkpoint has brought them."""
        del folder
        self._network = self.network

    def _build(self) -> _Network:
        seed = derive_seed(self._context.run.seed, "utterance critic")
        self._network = network = _Network(self._first_module(), seed=seed).eval()
        self._target = copy.deepcopy(network).requires_grad_(False)
        self._optimizer = build_optimizer(network, self._optim)
        return network

    def save(self, folder: Path) -> None:
        """Write networks, optimizer and buffer."""
        state = {
            "network": self.network.state_dict(),
            "target": self._target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, folder / _STATE)
        self._buffer.save(folder / _BUFFER)

    def load(self, folder: Path) -> None:
        self._build()
        state = torch.load(folder / _STATE, weights_only=True)
        self.network.load_state_dict(state["network"])
        self._target.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._buffer = ReplayBuffer.load(folder / _BUFFER)

    # ---- what it says, and learns ----------------------------------------------------------------------------------

    async def score_turns(self, episodes: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        """Return the advantage of every turn of some episodes; 0 where a turn has no sampled token."""
        return await asyncio.to_thread(self._score_turns, episodes)

    def _score_turns(self, episodes: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        turns = _Turns.of(episodes)
        advantages: list[float] = []
        if turns.places:
            with self._one_at_a_time, torch.no_grad():
                advantages = utterance_advantages(self.network(turns)).tolist()
        return [
            tuple(0.0 if number is None else advantages[number] for number in numbers) for numbers in turns.of_episodes
        ]

    def train_step(self, groups: Sequence[Group], *, step: int) -> Metrics:
        """Keep the episodes of a step, and make the updates."""
        fresh = [episode for group in groups for episode in group.valid if _Turns.of([episode]).places]
        trees = [keep_leaves(item.tree, [item.leaf], id=f"{item.tree.id}/{item.leaf}") for item in fresh]
        self._buffer = self._buffer.add(
            [ReplayEntry(tree=tree, step=step + 1) for tree in trees], capacity=self._capacity
        )
        if not fresh:
            return {}
        losses: list[float] = []
        for update in range(self._updates):
            rng = generator(self._context.run.seed, "utterance critic", step, update)
            replayed = [
                Trajectory(tree=entry.tree, leaf=entry.tree.leaves[0]) for entry in self._buffer.draw(self._batch, rng)
            ]
            numbers = rng.choice(len(fresh), size=min(self._batch, len(fresh)), replace=False)
            with self._one_at_a_time:
                losses.append(self._update(_Turns.of(replayed), _Turns.of([fresh[number] for number in numbers])))
        return {"loss": sum(losses) / len(losses), "loss_last": losses[-1], "buffer": float(len(self._buffer))}

    def _update(self, replayed: _Turns, fresh: _Turns) -> float:
        with torch.no_grad():
            next_v_2S = self._target(replayed).v_2S.roll(-1, dims=1)
            v_targets_2S = self._target(fresh).q_2S
        device = next_v_2S.device
        rewards_S = torch.tensor(replayed.rewards, dtype=next_v_2S.dtype, device=device)
        is_last_S = torch.tensor(replayed.is_last, device=device)
        targets_2S = q_targets(rewards_S, next_v_2S, is_last_S, discount=self._discount)
        loss: Tensor = (self.network(replayed).q_2S - targets_2S).square().mean(1).sum()
        loss = loss + (self.network(fresh).v_2S - v_targets_2S).square().mean(1).sum()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self._optim.grad_clip).item()
        if not math.isfinite(norm):
            raise not_finite("gradient norm", norm, self._rates)
        self._optimizer.step()
        with torch.no_grad():
            pairs = zip(self._target.parameters(), self.network.parameters(), strict=True)
            for target, parameter in pairs:
                target.lerp_(parameter, self._polyak)
        return loss.item()
