"""What a page of the store holds: lines of cells, some of which can be acted on, as one text.

Both ways into the store share it: the engine makes pages, the browser reads them out of the document. So it knows
neither products nor HTML.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_ACT = re.compile(r"([a-z_]+)\[(.*)\]", re.DOTALL)
MAX_SHOWN = 60
"""Characters of an argument that a refusal repeats."""


class PageAction(NamedTuple):
    """Something done on a page, written `verb[argument]`."""

    verb: str
    argument: str = ""

    @classmethod
    def read(cls, text: str) -> "PageAction | None":
        """Read `verb[argument]`; None where the text is nothing of the kind."""
        match = _ACT.fullmatch(text.strip())
        return cls(match[1], " ".join(match[2].split())) if match else None

    def __str__(self) -> str:
        """Write it as it is read."""
        return f"{self.verb}[{self.argument}]"


SEARCH = PageAction("search")
"""The search field; it takes any words."""


class LineCell(NamedTuple):
    """A piece of a line; with an act, a link or a button."""

    text: str
    act: PageAction | None = None
    is_chosen: bool = False

    @property
    def shown(self) -> str:
        """The text, in brackets where it is the chosen one of several."""
        return f"[{self.text}]" if self.is_chosen else self.text


class PageLine(NamedTuple):
    label: str = ""
    cells: tuple[LineCell, ...] = ()

    def __str__(self) -> str:
        describe_goals = " | ".join([cell.shown for cell in self.cells])
        return f"{self.label} {describe_goals}" if self.label and describe_goals else self.label or describe_goals


@dataclass(frozen=True, slots=True)
class ShopPage:
    """All that is seen of the store at once. The search field stands on every page."""

    lines: tuple[PageLine, ...]
    is_end: bool = False
    """True where nothing more can be done, not even a search."""

    @property
    def text(self) -> str:
        return "\n".join([str(line) for line in self.lines])

    def find(self, act: PageAction) -> PageAction | None:
        """Return the act as the page offers it, whatever the case of its letters; None where it does not."""
        if act.verb == SEARCH.verb and not self.is_end:
            return act
        argument = act.argument.casefold()
        offers = (offered for offered in self._acts() if offered.verb == act.verb)
        return next((offered for offered in offers if offered.argument.casefold() == argument), None)

    def _acts(self) -> Iterator[PageAction]:
        return (cell.act for line in self.lines for cell in line.cells if cell.act is not None)

    def refusal(self, act: PageAction) -> str:
        """Say that the page does not offer `act`, and what it does offer."""
        offers: dict[str, list[str]] = {} if self.is_end else {SEARCH.verb: ["words"]}
        for offered in self._acts():
            offers.setdefault(offered.verb, []).append(offered.argument)
        describe_goals = ", ".join(f"{verb}[{' or '.join(arguments)}]" for verb, arguments in offers.items())
        request = str(act) if len(str(act)) <= MAX_SHOWN else f"{str(act)[:MAX_SHOWN]}..."
        return f"This page does not offer {request}. It offers {describe_goals or 'nothing more'}."
