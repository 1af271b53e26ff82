"""Recorded episodes of another run: where they are, and whether their tokens are this model's."""

from collections.abc import Iterable
from pathlib import Path

from envgym.agents.loop.agent import Agent
from envgym.core.tasks import Split
from envgym.core.tree import Source, Tree
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of


def open_recorded(directory: str, *, where: str) -> RunDirectory:
    """Open a run that saved train episodes. Raises: RunError: there is none. SettingsError: it saved none."""
    run = RunDirectory.open(Path(directory))
    if not run.episode_steps():
        do = "name a training run that saved its episodes (run.save_episodes_every)"
        raise SettingsError.of("directory", f"hold train episodes ({directory})", "none", where=where, do=do)
    return run


def train_trees(run: RunDirectory) -> list[Tree]:
    """Return the trees that a run sampled on train tasks; what it replayed is not among them a second time."""
    trees = trees_of(run.episodes())
    return [tree for tree in trees if tree.split is Split.TRAIN and tree.source is not Source.REPLAY]


def check_vocabulary(trees: Iterable[Tree], agent: Agent, *, where: str) -> None:
    """See that recorded ids are to this model the tokens that they were. Raises: SettingsError: they are not."""
    for tree in trees:
        for segment in (segment for node in tree.nodes for segment in node.edge.segments if segment.token_strings):
            strings = agent.renderer.token_strings(segment.token_ids)
            for index, recorded, string in zip(segment.token_ids, segment.token_strings, strings, strict=True):
                if recorded != string:
                    got = f"id {index} for {recorded!r}, which is {string!r} here"
                    do = "record the episodes with this model, or take those of the oracle"
                    must = "hold tokens of this model's vocabulary"
                    raise SettingsError.of("recorded episodes", must, got, where=where, do=do)
