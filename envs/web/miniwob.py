"""MiniWoB++ in a real browser: `web/miniwob-v0`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast, get_args

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft
from envgym.core.messages import Action, Observation, TextPart
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env, ForkCapability, NoOracle
from envgym.envs.web._browser import LIMIT_S, check_browser
from envgym.envs.web._miniwob_actions import GRAMMAR, ActionRefused, PageCommand, check_command, parse_command
from envgym.envs.web._miniwob_oracles import EASY, ORACLES
from envgym.envs.web._miniwob_page import Input, MiniWobPage, page_names
from envgym.envs.web._miniwob_tools import PageTools
from envgym.envs.web._miniwob_view import PageView, show_elements
from envgym.errors import InvalidInput, ToolError, check_known, sentence, unknown_name
from envgym.records import Reply
from envgym.tools import Tool, collect_tools

_WHERE = "web/miniwob-v0"
MAX_SEED = 10**9
CHANCE = {"easy": 0.35, "solved": 0.25, "all": 0.25}
"""What clicking one element after the other earns at most; measured, see the card."""


class MiniWob(Env[PageView]):
    """Do what a small web page asks; the page itself says whether it was done."""

    system_prompt = (
        "You use a web page. Each turn shows the task and the elements of the page, each with its number in brackets; "
        f"a star marks what changed. Say one action a turn, in a line of its own, or call a tool. Actions: {GRAMMAR}. "
        "X and Y are pixels from the left upper corner of the element. The page judges you when you are done; answer "
        "gives up."
    )
    fork_capability: ClassVar[ForkCapability] = ForkCapability.REPLAY
    blocking = True

    def __init__(
        self,
        *,
        pages: str | Sequence[str] = "solved",
        input: str = "dom",
        changes_only: bool = False,
        limit_s: float = LIMIT_S,
        max_turns: int | None = 30,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the pages.

        Args:
            pages: `easy` (those that take one action or two), `solved` (those with an oracle), `all`, or names.
            input: `dom` makes events in the page; `mouse` moves the mouse of the browser, which takes longer.
            changes_only: Show only what changed since the last turn, not the whole page.
            limit_s: Real seconds after which a page that does not answer has failed; the episode is then invalid.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: an unknown page or input, or the browser or the pages are not installed.
        """
        check_browser(_WHERE)
        super().__init__(max_turns=max_turns, **options)
        check_known("input", str(input), get_args(Input), where=_WHERE)
        if not 0 < limit_s < math.inf:
            raise InvalidInput.of("limit_s", "be seconds above 0", limit_s, where=_WHERE, do="pass e.g. 60")
        self.pages = _chosen(pages)
        self.chance_score = CHANCE.get(pages, 1.0) if isinstance(pages, str) else 1.0
        self.changes_only = changes_only
        self._page = MiniWobPage(cast(Input, input), limit_s)  # just checked
        self.tasks = GeneratedTasks(self._draw, name="web/miniwob")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        page = self.pages[int(rng.integers(len(self.pages)))]
        seed = int(rng.integers(MAX_SEED))
        return TaskDraft(prompt=f"Do what the page {page} asks.", payload={"page": page, "seed": seed})

    def begin(self, task: Task) -> str:
        page, seed = str(task.payload["page"]), task.payload["seed"]
        if page not in page_names() or type(seed) is not int:
            do = "take one from env.tasks"
            raise InvalidInput.of("task", "name a page and a seed", task.payload, where=_WHERE, do=do)
        self.state = self._page.begin(page, seed)
        return show_elements(self.state)

    def respond(self, action: Action) -> Reply:
        before = self.state
        try:
            self._do(parse_command(action.content))
        except ActionRefused as refusal:
            self.state = before.noting(str(refusal))
        return self._reply(before)

    def toolset(self) -> Mapping[str, Tool]:
        return collect_tools(PageTools)

    def tool_owner(self) -> object:
        return PageTools(self._call)

    def after_tools(self, observation: Observation) -> Reply:
        *others, last = observation.messages
        reply = self._reply(None)
        page = replace(last, parts=(*last.parts, TextPart(f"\n{reply.observation}")))
        return replace(reply, observation=Observation.of([*others, page]))

    def oracle(self) -> str:
        """Return the next action, concluded from what the agent sees."""
        solve = ORACLES.get(self.state.page)
        if solve is None:
            do = "use pages='solved'"
            raise NoOracle(sentence(f"page {self.state.page}", "have an oracle", "none", where=_WHERE, do=do))
        return solve(self.state)

    def screenshot(self) -> bytes:
        """Return the page as a PNG. Raises: EnvFailure: the browser failed."""
        return self._page.screenshot()

    def close(self) -> None:
        self._page.close()

    def _do(self, command: PageCommand) -> None:
        view = self.state
        if view.is_over:
            raise ActionRefused("The episode is over.")
        for place in command.places:
            if view.node(place.id) is None:
                numbers = [node.id for node in view.nodes if node.id is not None]
                numbering = f"the elements are numbered up to {max(numbers)}" if numbers else "the page has none"
                raise ActionRefused(f"There is no element {place.id}: {numbering}.")
        match command.name:
            case "answer":
                self.state = replace(view, is_over=True, reward=0.0, notes=("You gave up.",))
            case "goto":
                raise ActionRefused(f"{command.text[:200]} is blocked: this page is all there is.")
            case _:
                self.state = self._page.act(view, command)

    def _reply(self, before: PageView | None) -> Reply:
        view = self.state
        if not view.is_over:
            return Reply(observation=show_elements(view, before, changes_only=self.changes_only))
        reward = Scored(
            value=max(0.0, view.reward), components={"solved": float(view.reward >= 1.0), "page": view.reward}
        )
        text = "\n".join([*view.notes, f"The page is done: {view.reward:g}."])
        return Reply(observation=text, reward=reward, terminated=True)

    def _call(self, command: PageCommand) -> str:
        try:
            self._do(check_command(command))
        except ActionRefused as refusal:
            raise ToolError(str(refusal)) from None
        return "Done."


def _chosen(pages: str | Sequence[str]) -> tuple[str, ...]:
    all_pages = page_names()
    if pages == "all":
        return all_pages
    if pages in ("easy", "solved"):
        return tuple(name for name in all_pages if name in (EASY if pages == "easy" else ORACLES))
    names = (pages,) if isinstance(pages, str) else tuple(pages)
    for name in names:
        if name not in all_pages:
            raise unknown_name("page", str(name), ["all", "easy", "solved", *all_pages], where=_WHERE)
    InvalidInput.unless(names, "pages", "name at least one page", "none", where=_WHERE, do="pass e.g. 'solved'")
    return names
