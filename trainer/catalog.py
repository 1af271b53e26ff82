"""The plug-ins of the trainer: every choice of a run that its method and its reports make."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from envgym.plugins import PluginKind

if TYPE_CHECKING:
    from envgym.trainer.methods.corrections.base import Correction
    from envgym.trainer.methods.losses.aggregate import Aggregation
    from envgym.trainer.methods.losses.base import PolicyLoss
    from envgym.trainer.methods.losses.kl import KlEstimator
    from envgym.trainer.methods.protocols import Credit, CriticCredit, Curriculum, Filter, Shaping
    from envgym.trainer.metrics.callbacks import Callback
    from envgym.trainer.recipes import RecipeEntry
    from envgym.trainer.workflows.demonstrations import DemonstrationSource

CURRICULUM: Final["PluginKind[Curriculum]"] = PluginKind(
    name="curriculum",
    protocols=("envgym.trainer.methods.protocols:Curriculum",),
    table={
        "uniform": "envgym.trainer.methods.curricula.uniform:Uniform",
    },
)
"""Which tasks come next."""
FILTER: Final["PluginKind[Filter]"] = PluginKind(
    name="filter",
    protocols=("envgym.trainer.methods.protocols:Filter",),
    table={
        "keep_all": "envgym.trainer.methods.filters.keep_all:KeepAll",
        "zero_variance": "envgym.trainer.methods.filters.zero_variance:ZeroVariance",
        "top_variance": "envgym.trainer.methods.filters.top_variance:TopVariance",
    },
    is_function=True,
)
"""Which groups train."""
SHAPING: Final["PluginKind[Shaping]"] = PluginKind(
    name="shaping",
    protocols=("envgym.trainer.methods.protocols:Shaping",),
    table={
        "none": "envgym.trainer.methods.shaping.none:NoShaping",
        "overlong": "envgym.trainer.methods.shaping.overlong:Overlong",
    },
    is_function=True,
)
"""What is added to the rewards that credit sees."""
CREDIT: Final["PluginKind[Credit | CriticCredit]"] = PluginKind(
    name="credit",
    protocols=(
        "envgym.trainer.methods.protocols:Credit",
        "envgym.trainer.methods.protocols:CriticCredit",
    ),
    table={
        "grpo": "envgym.trainer.methods.credit.grpo:Grpo",
        "dr_grpo": "envgym.trainer.methods.credit.dr_grpo:DrGrpo",
        "rloo": "envgym.trainer.methods.credit.rloo:Rloo",
        "opo": "envgym.trainer.methods.credit.opo:Opo",
        "turn_grpo": "envgym.trainer.methods.credit.turn_grpo:TurnGrpo",
        "mt_grpo": "envgym.trainer.methods.credit.mt_grpo:MtGrpo",
        "scrl": "envgym.trainer.methods.credit.scrl:Scrl",
        "min_form": "envgym.trainer.methods.credit.min_form:MinForm",
        "sibling": "envgym.trainer.methods.credit.sibling:Sibling",
        "gigpo": "envgym.trainer.methods.credit.gigpo:Gigpo",
        "tree_grpo": "envgym.trainer.methods.credit.tree_grpo:TreeGrpo",
        "tree_po": "envgym.trainer.methods.credit.tree_po:TreePo",
        "tree_rl": "envgym.trainer.methods.credit.tree_rl:TreeRl",
        "spo": "envgym.trainer.methods.credit.spo:Spo",
        "deep_search": "envgym.trainer.methods.credit.deep_search:DeepSearch",
        "gae_turn": "envgym.trainer.methods.credit.gae_turn:GaeTurn",
        "gae_token": "envgym.trainer.methods.credit.gae_token:GaeToken",
        "gae_bilevel": "envgym.trainer.methods.credit.gae_bilevel:GaeBilevel",
    },
    is_function=True,
)
"""Advantages of the episodes of a group."""
LOSS: Final["PluginKind[PolicyLoss]"] = PluginKind(
    name="loss",
    protocols=("envgym.trainer.methods.losses.base:PolicyLoss",),
    table={
        "ppo_clip": "envgym.trainer.methods.losses.ppo_clip:PpoClip",
        "reinforce": "envgym.trainer.methods.losses.reinforce:Reinforce",
    },
    is_function=True,
)
"""Loss of every token."""
CORRECTION: Final["PluginKind[Correction]"] = PluginKind(
    name="correction",
    protocols=("envgym.trainer.methods.corrections.base:Correction",),
    table={
        "none": "envgym.trainer.methods.corrections.none:NoCorrection",
        "tis": "envgym.trainer.methods.corrections.tis:Tis",
        "mis": "envgym.trainer.methods.corrections.mis:Mis",
        "icepop": "envgym.trainer.methods.corrections.icepop:IcePop",
        "geometric": "envgym.trainer.methods.corrections.geometric:Geometric",
        "divergence": "envgym.trainer.methods.corrections.divergence:Divergence",
    },
)
"""Weights and rejections for the mismatch between sampler and trainer."""
KL_ESTIMATOR: Final["PluginKind[KlEstimator]"] = PluginKind(
    name="kl_estimator",
    protocols=("envgym.trainer.methods.losses.kl:KlEstimator",),
    table={
        "k1": "envgym.trainer.methods.losses.kl:k1",
        "k2": "envgym.trainer.methods.losses.kl:k2",
        "k3": "envgym.trainer.methods.losses.kl:k3",
    },
    is_function=True,
)
"""Estimate of a KL divergence from sampled tokens."""
AGGREGATION: Final["PluginKind[Aggregation]"] = PluginKind(
    name="aggregation",
    protocols=("envgym.trainer.methods.losses.aggregate:Aggregation",),
    table={
        "token-mean": "envgym.trainer.methods.losses.aggregate:TokenMean",
        "token-sum": "envgym.trainer.methods.losses.aggregate:TokenSum",
        "seq-mean-token-sum": "envgym.trainer.methods.losses.aggregate:SeqMeanTokenSum",
        "seq-mean-token-mean": "envgym.trainer.methods.losses.aggregate:SeqMeanTokenMean",
        "seq-mean-token-sum-norm": "envgym.trainer.methods.losses.aggregate:SeqMeanTokenSumNorm",
    },
    is_function=True,
)
"""How the losses of a batch become one number."""

DEMONSTRATIONS: Final["PluginKind[DemonstrationSource]"] = PluginKind(
    name="demonstrations",
    protocols=("envgym.trainer.workflows.demonstrations:DemonstrationSource",),
    table={
        "oracle": "envgym.trainer.workflows.demonstrations:OracleDemonstrations",
        "recorded": "envgym.trainer.workflows.demonstrations:RecordedDemonstrations",
    },
)
"""What a warm start imitates."""

RECIPE: Final["PluginKind[RecipeEntry]"] = PluginKind(
    name="recipe",
    protocols=("envgym.trainer.recipes:RecipeEntry",),
    table={
        "grpo": "envgym.trainer.recipes:GRPO",
        "dr_grpo": "envgym.trainer.recipes:DR_GRPO",
        "rloo": "envgym.trainer.recipes:RLOO",
        "dapo": "envgym.trainer.recipes:DAPO",
        "turn_grpo": "envgym.trainer.recipes:TURN_GRPO",
        "mt_grpo": "envgym.trainer.recipes:MT_GRPO",
        "gigpo": "envgym.trainer.recipes:GIGPO",
        "starpo_s": "envgym.trainer.recipes:STARPO_S",
        "tree_grpo": "envgym.trainer.recipes:TREE_GRPO",
        "tree_rl": "envgym.trainer.recipes:TREE_RL",
        "arpo": "envgym.trainer.recipes:ARPO",
        "deep_search": "envgym.trainer.recipes:DEEP_SEARCH",
    },
)
"""Choices that a paper makes together."""

TRACKER: Final["PluginKind[Callback]"] = PluginKind(
    name="tracker",
    protocols=("envgym.trainer.metrics.callbacks:Callback",),
    table={
        "progress": "envgym.trainer.metrics.callbacks:LiveProgress",
        "tensorboard": "envgym.trainer.metrics.callbacks:TensorBoard",
        "wandb": "envgym.trainer.metrics.callbacks:Wandb",
    },
)
"""What a run reports to while it goes on."""

KINDS: Final[Mapping[str, "PluginKind[Any]"]] = MappingProxyType(  # each kind makes objects of its own type
    {
        kind.name: kind
        for kind in (
            CURRICULUM,
            FILTER,
            SHAPING,
            CREDIT,
            LOSS,
            CORRECTION,
            KL_ESTIMATOR,
            AGGREGATION,
            DEMONSTRATIONS,
            RECIPE,
            TRACKER,
        )
    }
)
"""Name -> kind."""
