"""Turns that `envgym export` writes in a second, by kind of data set.

Run: python benchmarks/export.py [--episodes 4096] [--turns 4]. Prints one JSON line. The run has episodes of tool calls with
tokens, log-probs and advantages; they are read from its files, and the folder is written with all its parts. CPU time is
that of the process, with the threads of Arrow.
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import numpy as np

from envgym import Message, Role, ToolCall
from envgym.cli.export import data_kind
from envgym.core.serialize import action_to_json, observation_to_json
from envgym.core.messages import Action, Observation
from envgym.export.dataset import export_data
from envgym.export.episodes import EpisodeChoice
from envgym.export.rows import RowOptions
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from tests.support.large_runs import CONFIG, chain, scores, step_rows

LEAST_TURNS_S = 20_000
KINDS = ("chat", "sharegpt", "preferences", "steps", "tokens")
