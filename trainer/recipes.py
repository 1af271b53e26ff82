"""Recipes as data: a paper is one choice per plug-in point, and any of them can be replaced by a run's settings."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class RecipeEntry(NamedTuple):
    """One recipe."""

    summary: str
    """The paper, and how the recipe deviates from it."""
    choices: Mapping[str, Any]
    """Sections of a run's settings; what is left out keeps its default."""


def _clip(low: float = 0.2, high: float = 0.2, **others: float) -> dict[str, Any]:
    return {"name": "ppo_clip", "clip_low": low, "clip_high": high, **others}


GRPO: Final = RecipeEntry(
    "GRPO (2402.03300), with DAPO's token-mean and group filter (2503.14476) and no KL term.",
    {
        "filter": {"name": "zero_variance"},
        "credit": {"name": "grpo"},
        "loss": _clip(),
        "objective": {"aggregation": "token-mean"},
    },
)

DR_GRPO: Final = RecipeEntry(
    "Dr. GRPO (2503.20783): no division by the standard deviation, and the constant "
    "`objective.aggregation.max_tokens` instead of the row's length; set it to the most tokens that an episode "
    "may sample.",
    {
        "filter": {"name": "keep_all"},
        "credit": {"name": "dr_grpo"},
        "loss": _clip(),
        "objective": {"aggregation": {"name": "seq-mean-token-sum-norm", "max_tokens": 512}},
    },
)

RLOO: Final = RecipeEntry(
    "RLOO (2402.14740): leave-one-out baseline and the plain policy gradient, summed over tokens.",
    {
        "filter": {"name": "keep_all"},
        "credit": {"name": "rloo"},
        "loss": {"name": "reinforce"},
        "objective": {"aggregation": "seq-mean-token-sum"},
    },
)

DAPO: Final = RecipeEntry(
    "DAPO (2503.14476): clip-higher, dynamic sampling, token-mean over the update, a soft penalty for long "
    "episodes, no KL. Set `shaping.max_tokens` to the most tokens that an episode may sample.",
    {
        "resampling": {"rounds": 3},
        "filter": {"name": "zero_variance"},
        "shaping": {"name": "overlong", "max_tokens": 512, "buffer": 128},
        "credit": {"name": "grpo"},
        "loss": _clip(high=0.28),
        "objective": {"aggregation": "token-mean"},
    },
)

TURN_GRPO: Final = RecipeEntry(
    "Turn-level GRPO (own): the return from each turn on, less that of the other episodes; unbiased.",
    {
        "filter": {"name": "keep_all"},
        "credit": {"name": "turn_grpo"},
        "loss": {"name": "reinforce"},
        "objective": {"aggregation": "seq-mean-token-sum"},
    },
)

MT_GRPO: Final = RecipeEntry(
    "MT-GRPO (2505.11821): a turn's own reward beside the outcome, for environments that reward turns before "
    "the last. No KL term, and token-mean, as in `grpo`.",
    {
        "filter": {"name": "keep_all"},
        "credit": {"name": "mt_grpo"},
        "loss": _clip(),
        "objective": {"aggregation": "token-mean"},
    },
)

GIGPO: Final = RecipeEntry(
    "GiGPO (2505.10978): the episode against its group, and each turn against the turns that began in the "
    "same state, for environments whose observation shows their state. No KL term, and token-mean, as in "
    "`grpo`.",
    {
        "filter": {"name": "keep_all"},
        "credit": {"name": "gigpo", "discount": 0.95, "step_weight": 1.0},
        "loss": _clip(),
        "objective": {"aggregation": "token-mean"},
    },
)

STARPO_S: Final = RecipeEntry(
    "StarPO-S (2504.20073): PPO on whole episodes with a critic, on the groups of the largest variance; no KL. "
    "GAE over sampled tokens with discount and decay 1, so the critic is a baseline of the return.",
    {
        "filter": {"name": "top_variance", "share": 0.25, "by": "count"},
        "credit": {"name": "gae_token", "discount": 1.0, "decay": 1.0},
        "loss": _clip(high=0.28),
        "objective": {"aggregation": "token-mean"},
    },
)

TREE_GRPO: Final = RecipeEntry(
    "Tree-GRPO (2509.21240): trees expanded at random turns (two a round, one round), advantages within the "
    "tree and within the group. No KL term.",
    {
        "search": {"name": "random_expand", "nodes": 2, "rounds": 1},
        "filter": {"name": "zero_variance"},
        "credit": {"name": "tree_grpo"},
        "loss": _clip(dual_clip=3.0),
        "objective": {"aggregation": "token-mean", "shared_tokens": "per_path"},
    },
)

TREE_RL: Final = RecipeEntry(
    "TreeRL (2506.11902): branches at the tokens of highest surprisal, and credit by what every node adds to "
    "the value of the tree. The upper clip is 1.3 times the lower, as in the paper. No KL term.",
    {
        "search": {"name": "surprisal_fork", "where": "token", "nodes": 2, "branches": 2, "rounds": 1},
        "filter": {"name": "zero_variance"},
        "credit": {"name": "tree_rl", "shared": 0.5},
        "loss": _clip(high=0.26),
        "objective": {"aggregation": "seq-mean-token-mean", "shared_tokens": "per_path"},
    },
)

ARPO: Final = RecipeEntry(
    "ARPO (2507.19849): more branches where the policy grew uncertain after a tool call, and GRPO on their "
    "leaves; for environments with tools. No KL term, and token-mean, as in `grpo`.",
    {
        "search": {"name": "surprisal_fork", "where": "after_tool", "nodes": 1, "branches": 1},
        "filter": {"name": "zero_variance"},
        "credit": {"name": "grpo"},
        "loss": _clip(),
        "objective": {"aggregation": "token-mean", "shared_tokens": "per_path"},
    },
)

DEEP_SEARCH: Final = RecipeEntry(
    "DeepSearch (2509.25454): eight episodes a tree, grown from the best of all nodes; credit by what was "
    "backed up on them; clip-higher with a dual clip of 10, no KL term. Left out: the penalty for long "
    "episodes (`shaping.name=overlong` adds it), the choice of hard prompts, the replay of solutions.",
    {
        "search": {
            "name": "mcts",
            "simulations": 8,
            "rule": "uct",
            "c": 2.0,
            "frontier": True,
            "backup": "decayed",
        },
        "filter": {"name": "zero_variance"},
        "credit": {"name": "deep_search"},
        "loss": _clip(high=0.28, dual_clip=10.0),
        "objective": {"aggregation": "token-mean", "shared_tokens": "per_path"},
    },
)
