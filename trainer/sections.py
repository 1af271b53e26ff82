"""The sections of a training run's settings that the trainer adds to those of `envgym.agents.settings`."""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, model_validator

from envgym.agents.protocols import Sampling
from envgym.agents.settings import RunSettings
from envgym.core.segments import Origin
from envgym.core.tree import Source
from envgym.errors import SettingsError, sentence
from envgym.plugins import Choice
from envgym.settings import Settings


def check_trainable(sampling: Sampling, *, where: str) -> None:
    """Refuse a way of sampling whose samples have no exact gradient. Raises: SettingsError."""
    if not sampling.temperature:
        must, do = "be above 0 in training", "raise it: greedy samples have no gradient"
        raise SettingsError.of("sampling.temperature", must, 0, where=where, do=do)
    for name, value, neutral in (("top_p", sampling.top_p, 1.0), ("top_k", sampling.top_k, 0.0)):
        must, do = f"be {neutral:g} in training", "leave it out: what is cut off has no exact gradient"
        SettingsError.unless(value == neutral, f"sampling.{name}", must, value, where=where, do=do)


def _check_left(settings: Settings, names: Iterable[str], when: str, *, where: str = "launch", do: str) -> None:
    """Refuse values of settings that nothing reads. Raises: ValueError: one is not its default."""
    for name in names:
        value, usual = getattr(settings, name), type(settings).model_fields[name].default
        if value != usual:
            must = f"be left at {'null' if usual is None else usual} {when}"
            raise ValueError(sentence(f"{where}.{name}", must, value, where=where, do=do))


class TrainRunSettings(RunSettings):
    """The run itself."""

    steps: int = Field(default=100, ge=0)
    """Train steps (optimizer updates per step: see `optim`)."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step always makes one."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Older checkpoints are deleted, that of step 0 too: raise it to evaluate an earlier policy again."""
    save_episodes_every: int = Field(default=1, ge=0)
    """Steps between saved batches of episodes, with the numbers that the learner computed of tokens; 0 saves none."""
    trackers: tuple[Choice, ...] = (Choice(name="progress"), Choice(name="tensorboard"))
    """What the command line reports the run to: `progress` in the terminal, `tensorboard` event files where the package
    is installed, `wandb` with its `project`, or one of your own."""
    journal: bool = True
    """Keep sampled turns until a checkpoint holds what they taught, so that a resumed run samples none again."""
    max_invalid_rate: float = Field(default=0.5, ge=0, le=1)
    """The run stops when a larger share of a step's episodes is invalid, or of the annotations of one name failed."""

    def saves_episodes(self, step: int) -> bool:
        """Return whether the episodes of a step (from 1) are saved."""
        return self.save_episodes_every > 0 and step % self.save_episodes_every == 0


class SftSettings(Settings):
    """A warm start: supervised training before the first step of reinforcement learning."""

    source: Choice = Choice(name="oracle")
    """What gives the demonstrations: `oracle` plays the envs' oracles on train tasks; `recorded` reads the episodes
    of another run (`directory`); or a source of your own, such as `examples/giving_up.py:GivingUp`."""
    episodes: int = Field(default=256, ge=1)
    """Episodes to play; a source that reads them ignores it."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the demonstrations."""
    batch_size: int = Field(default=32, ge=1)
    """Episodes per update."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of AdamW at its highest."""
    warmup_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the updates in which the rate rises; it falls to 0 as a cosine afterwards."""
    until_success: float | None = Field(default=None, gt=0, le=1)
    """Stop once this share of sampled episodes on train tasks succeeds; the rate then stays up instead of falling.
    A policy that fails at times is what reinforcement learning needs: no more than that is worth imitating."""
    check_every: int = Field(default=50, ge=1)
    """Updates between such checks."""
    check_tasks: int = Field(default=64, ge=1)
    """Episodes of each check, each on a task of its own."""
    next: "SftSettings | None" = None
    """A further phase after this one, with demonstrations and an optimizer of its own."""

    @property
    def phases(self) -> "list[SftSettings]":
        """This phase and those after it."""
        return [self, *(self.next.phases if self.next is not None else [])]


class DecontaminationSettings(Settings):
    """Leave out train tasks whose text overlaps with the held-out tasks of the evaluation. Source: 2411.15124."""

    ngram: int = Field(default=8, ge=1)
    """Words in a row that two texts must have in common."""
    share: float = Field(default=0.5, ge=0, lt=1)
    """Largest share of a held-out text's words that lie in such rows of a train task that is kept."""


class RaySettings(Settings):
    """The cluster of the launcher `ray`, and what each process takes of it; all nodes must see the run directory."""

    address: str = "auto"
    """`auto`: the cluster that this machine belongs to, or `RAY_ADDRESS`; HOST:PORT of its head; `local` starts one on
    this machine for as long as the run goes on."""
    strategy: Literal["PACK", "SPREAD"] = "PACK"
    """`PACK`: on as few nodes as possible; `SPREAD`: on as many."""
    learner_cpus: float = Field(default=1.0, gt=0)
    """CPUs of a learner rank, also of the run's own process."""
    learner_gpus: float | None = Field(default=None, ge=0)
    """GPUs of a learner rank; null: 1 where `engine.device` is CUDA, else 0."""
    server_cpus: float = Field(default=1.0, gt=0)
    """CPUs of a policy server."""
    server_gpus: float | None = Field(default=None, ge=0)
    """GPUs of a policy server; null as for `learner_gpus`."""
    env_server_cpus: float = Field(default=1.0, gt=0)
    """CPUs of an environment server."""
    env_server_gpus: float = Field(default=0.0, ge=0)
    """GPUs of an environment server."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds within which the cluster must answer and place all processes."""
    clock_tolerance_s: float = Field(default=5.0, ge=0)
    """Seconds by which the clocks of nodes may differ, as logs of all processes are joined by time."""


class LaunchSettings(Settings):
    """Processes that a run starts beside its own, watches and ends: a server that dies is started again; where another
    process dies, the run ends and can be resumed."""

    launcher: Literal["local", "ray", "static"] = "local"
    """`local` starts them on this machine, `ray` on the nodes of a Ray cluster. `static` starts none, and sees that as
    many addresses are given (`servers` of the envs and of `engine.backend`); its learner ranks are those of
    torchrun."""
    ray: RaySettings = RaySettings()
    """The cluster, for the launcher `ray`."""
    learners: int = Field(default=1, ge=1)
    """Processes that learn together, this one among them, each with a shard of the model; under torchrun as many as it
    has started."""
    servers: int = Field(default=0, ge=0)
    """Policy servers, which sample with a copy of the weights each; 0: the policy samples in this process."""
    server_engine: Literal["transformers", "vllm"] = "transformers"
    """What the policy servers sample with; numbers of `transformers` are those of a run without servers."""
    transport: Literal["files", "ipc", "nccl", "gloo"] = "files"
    """How new weights get to the policy servers, as `transport` of the backend `policy_servers`."""
    env_servers: int = Field(default=0, ge=0)
    """Environment servers, which share the episodes of the envs that name no servers; 0: envs live in this process."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds within which every process must be ready."""
    rank_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that learner ranks wait for each other in the middle of a train step."""
    restarts: int = Field(default=3, ge=0)
    """Times within ten minutes that each server is started again after it died; then the run ends."""
    health_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds within which a server must say that it is well; one that does not is killed and started again."""

    @model_validator(mode="after")
    def _check_used(self) -> "LaunchSettings":
        """Refuse what only processes that this run starts would do."""
        starts, is_by_ray = self.launcher != "static", self.launcher == "ray"
        if is_by_ray and self.servers and self.transport == "ipc":
            must, do = "be another with the launcher ray", "use files or nccl: servers may be elsewhere"
            raise ValueError(sentence("launch.transport", must, "ipc", where="launch", do=do))
        do = "set launch.servers (--servers 1), or name the way in engine.backend for servers of your own"
        if not (starts and self.servers):
            _check_left(self, ("server_engine", "transport"), "where the run starts no policy server", do=do)
        if not (starts and self.servers + self.env_servers):
            do = "leave it out, or set launch.servers or launch.env_servers: only these are started again"
            _check_left(self, ("restarts", "health_timeout_s"), "where the run starts no server", do=do)
        if not is_by_ray:
            do = "leave it out, or set launch.launcher=ray (--launcher ray)"
            _check_left(self.ray, RaySettings.model_fields, "with another launcher than ray", where="launch.ray", do=do)
        return self

    @property
    def num_started(self) -> int:
        """How many processes are started."""
        return self.learners - 1 + self.servers + self.env_servers if self.launcher != "static" else 0


class RolloutSettings(Settings):
    """How many episodes a step samples, how far sampling runs ahead of learning, and which episodes it waits for."""

    groups: int = Field(default=8, ge=1)
    """Groups per train step."""
    group_size: int = Field(default=8, ge=1)
    """Episodes that share a baseline; at least 2, but for a credit with a critic."""
    metrics: tuple[Choice, ...] = ()
    """What else is measured of each step's episodes: `endings`, `lengths`, or metrics of your own."""
    staleness: int = Field(default=0, ge=0)
    """Train steps by which a sample may be older than the weights that it trains. 0: every step samples anew. Above,
    the groups of later steps are begun already; choose a `correction`, as they are off-policy."""
    deterministic: bool = True
    """Finish groups before a step learns, so that a run repeats; with `staleness` the samples are then exactly that
    old. false: sampling, envs and learning overlap, and samples are at most that old."""
    oversampling: float = Field(default=1.0, ge=1)
    """Groups that are begun for each that a step trains on; it goes on when the filter keeps as many as it needs."""
    min_finished_share: float = Field(default=1.0, gt=0, le=1)
    """Share of a step's trees that it waits for in any case; a chain is a tree with one episode."""
    max_group_size: int = Field(default=64, ge=1)
    """Most episodes that are sampled of a group, where an `allocator` extends it."""
    stragglers: Literal["wait", "abort", "carry", "window"] = "wait"
    """What becomes of the others: waited for; aborted, so that their episodes under way are invalid; or carried over to
    the next step. `window`: a step takes finished groups of the next steps in their place, and they train as soon as
    they are finished, or are aborted before they are older than `staleness`."""
    window: float = Field(default=0.3, ge=0, le=1)
    """Share of the groups begun ahead among which `stragglers: window` looks for finished ones."""

    @property
    def overlaps(self) -> bool:
        """Whether groups are sampled while a step learns."""
        return self.staleness > 0 and not self.deterministic

    @property
    def steps_ahead(self) -> int:
        """Steps whose groups are begun ahead; one that carries over lets its stragglers grow older by one."""
        return self.staleness - (self.stragglers == "carry")

    @model_validator(mode="after")
    def _check_stragglers(self) -> "RolloutSettings":
        where, must = "rollout", "be false where stragglers are not waited for"
        if self.stragglers != "wait" and self.deterministic:
            do = "set it to false: which episodes are late depends on timing"
            raise ValueError(sentence("rollout.deterministic", must, True, where=where, do=do))
        if self.stragglers in ("wait", "window") and self.min_finished_share < 1:
            do = "set stragglers to abort or carry, or leave min_finished_share at 1"
            must, got = "be 1 where all are waited for", self.min_finished_share
            raise ValueError(sentence("rollout.min_finished_share", must, got, where=where, do=do))
        if self.stragglers in ("carry", "window") and not self.staleness:
            do = "raise it: an episode that is carried over was started with older weights"
            raise ValueError(sentence("rollout.staleness", "be at least 1 to carry over", 0, where=where, do=do))
        if self.stragglers == "window" and self.oversampling > 1:
            must, do = "be 1 where stragglers is window", "leave it out: what the filter drops is replaced at once"
            raise ValueError(sentence("rollout.oversampling", must, self.oversampling, where=where, do=do))
        if self.stragglers != "window":
            _check_left(self, ("window",), "where stragglers is not window", where=where, do="set stragglers to window")
        return self


class OptimSettings(Settings):
    """AdamW and its schedule. Source: 1711.05101."""

    lr: float = Field(default=1e-5, gt=0)
    """Learning rate after the warmup."""
    warmup_steps: int = Field(default=0, ge=0)
    """Train steps over which the learning rate rises from 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """After warmup, down to 0 at the last step."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's first and second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant that AdamW adds to its divisor."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient of one update."""
    minibatches: int = Field(default=1, ge=1)
    """Updates that one pass over a step's rows is cut into."""
    epochs: int = Field(default=1, ge=1)
    """Passes over a step's rows."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Tokens computed at a time, padding included; bounds memory, changes no result. A longer row stands alone."""
    packing: bool = True
    """Compute each prefix that rows share once; false: every row by itself, padded. Changes time and memory only."""
    compile_layers: bool = False
    """Compile the decoder layers (torch.compile): a longer first step, shorter ones after it, other rounding."""


class DemonstrationSettings(Settings):
    """Demonstrations beside the episodes of every step, for terms of the objective that read them."""

    source: Choice = Choice(name="oracle")
    """What gives them, as for a warm start: `oracle` or `recorded` (`directory`)."""
    episodes: int = Field(default=256, ge=1)
    """Episodes to play when the run begins or is resumed; a source that reads them ignores it."""
    per_step: int = Field(default=8, ge=1)
    """Episodes drawn for each step."""


class TermSettings(Settings):
    """One more term of the objective."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Names its metrics: `loss/<name>`, `coef/<name>`."""
    loss: Choice
    """Loss of every token that the term reads; `nll` imitates."""
    coef: float | Choice = 1.0
    """What the term is multiplied with: a number (0: it is left out), or a schedule (`linear`, `cosine`, your own)."""
    aggregation: Choice | None = None
    """How its token losses become one number; null: as those of the policy's loss."""
    sources: tuple[Source, ...] = (Source.POLICY, Source.REPLAY)
    """Who produced the episodes of the rows that it reads."""
    origins: tuple[Origin, ...] = (Origin.POLICY,)
    """Origins of the tokens that it reads: `POLICY`, `DEMONSTRATION`, `TOOL`; no prompt, template or hint trains."""

    @model_validator(mode="after")
    def _check_origins(self) -> "TermSettings":
        trainable = (Origin.POLICY, Origin.DEMONSTRATION, Origin.TOOL)
        for what, given, known in (("origins", self.origins, trainable), ("sources", self.sources, tuple(Source))):
            if not given or set(given) - set(known):
                must, do = f"be some of {', '.join(known)}", "leave the others out"
                got = ", ".join(given) or "none"
                raise ValueError(sentence(f"{what} of a term", must, got, where=f"term {self.name}", do=do))
        return self


class ObjectiveSettings(Settings):
    """How token losses become the number that is minimised."""

    aggregation: Choice = Choice(name="token-mean")
    """`token-mean`, `token-sum`, `seq-mean-token-sum`, `seq-mean-token-mean`, `seq-mean-token-sum-norm` (max_tokens)"""
    shared_tokens: Literal["per_path", "once"] = "per_path"
    """A token that k rows share trains k times, or once (weight 1/k)."""
    old_policy: Literal["recomputed", "rollout"] = "recomputed"
    """What the loss's ratio is taken to: the policy as the step began, of which the learner computes log-probs anew; or
    the one that sampled, by the log-probs that it stated (bypass), so that the ratio corrects for it, too."""
    kl_estimator: Choice = Choice(name="k3")
    """Estimator of KL(policy || reference) in the loss: `k1`, `k2` or `k3`."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL term; 0: no reference model is kept."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; 0: there is none."""
    policy_coef: float | Choice = 1.0
    """What the policy's loss is multiplied with: a number, or a schedule over train steps."""
    terms: tuple[TermSettings, ...] = ()
    """What is minimised beside the policy's loss, its KL term and its entropy bonus."""

    @model_validator(mode="after")
    def _check_names(self) -> "ObjectiveSettings":
        names = ["policy", "kl_reference", "entropy_bonus", *(term.name for term in self.terms)]
        if repeated := [name for name in names if names.count(name) > 1]:
            do = "rename one"
            raise ValueError(sentence("names of terms", "differ", repeated[0], where="objective.terms", do=do))
        return self


class CriticSettings(Settings):
    """The value head of a credit that reads values."""

    model: str | None = None
    """The model in `models`, of the kind `token_critic`, whose body the head reads; null: the policy."""
    lr: float = Field(default=0.05, gt=0)
    """Learning rate of the head: about how far one update moves a value; constant on the policy's body. Each update is
    AdamW's, with the betas and eps of `optim`."""
    detach: bool = True
    """The head learns from the policy's hidden states as they are, so that the policy's gradient is that of its
    objective alone, and exact for any critic. false: the value loss trains the policy's body too. Another model's body
    always learns."""
    coef: float = Field(default=0.5, gt=0)
    """Weight of the value loss beside the policy's; it matters only without `detach`, as Adam undoes it in the head."""
    clip: float | None = Field(default=None, gt=0)
    """How far a value may move within a train step before it stops learning; null: any."""


class CanarySettings(Settings):
    """Before and after every update: are the weights that sample those that have learned?"""

    enabled: bool = True
    """Whether the check is made."""
    max_gap: float = Field(default=0.1, gt=0)
    """Largest mean difference of log-probs between sampler and learner, in nats; beyond it the run stops."""
    min_move: float = Field(default=1e-3, gt=0)
    """When the learner's log-probs move by more than this and the sampler's do not, the run stops."""
    on_rewrite: Literal["row", "fail"] = "row"
    """A turn whose context had to be rendered anew begins a row of its own, or stops the run; also when not enabled."""


class ResamplingSettings(Settings):
    """Dynamic sampling: more groups in place of those that the filter drops. Source: 2503.14476."""

    rounds: int = Field(default=1, ge=1)
    """Most rounds of `rollout.groups` groups that a step collects; it stops when the filter has kept so many."""


class NamedModelSettings(Settings):
    """A model of the run beside its policy."""

    kind: Choice
    """`local` (a directory, for log-probs), `snapshot` (the policy as the run began), `endpoint` (a service that
    answers conversations), one that learns beside the policy (`token_critic` ...), or one of your own."""


class PhasesSettings(Settings):
    """The section `phases` of a settings file, whose other sections are those that all phases share."""

    phases: tuple[dict[str, Any], ...] = Field(default=(), min_length=1)
    """Runs in their order, each with a `name` and the sections that it lays over the shared ones."""


class SelfTrainingSettings(Settings):
    """The section `self_training` of a settings file, whose other sections are those of the first policy's run."""

    plan: Choice
    """The method: `rest_mcts`, `agent_prm`, or one of your own."""
    rounds: int = Field(default=2, ge=1)
    """Rounds of a scorer and a policy after the first policy."""
    episodes: int = Field(default=2048, ge=1)
    """Episodes that the scorer of each round is fitted on."""
    scorer: dict[str, Any] = Field(default_factory=dict)
    """Sections of the fits, such as `optim` and `critic`."""
