"""A page as the agent sees it: numbered elements, and what changed since the last turn."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from envgym.core.json_types import JsonObject

MAX_LINES = 400
"""Further elements are counted, not shown."""
COLORS: Mapping[str, str] = {
    "#000000": "black",
    "#ffffff": "white",
    "#808080": "gray",
    "#c0c0c0": "silver",
    "#ff0000": "red",
    "#800000": "maroon",
    "#ffff00": "yellow",
    "#808000": "olive",
    "#00ff00": "lime",
    "#008000": "green",
    "#00ffff": "cyan",
    "#008080": "teal",
    "#0000ff": "blue",
    "#000080": "navy",
    "#ff00ff": "magenta",
    "#800080": "purple",
    "#ffa500": "orange",
    "#ffc0cb": "pink",
    "#ffd700": "gold",
}
"""Names of the colors that have one here; others are written as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageElement:
    id: int | None
    """Its number for actions; None for a text between elements."""
    role: str
    name: str
    depth: int = 0
    value: str | None = None
    options: tuple[str, ...] = ()
    checked: bool | None = None
    expanded: bool | None = None
    selected: bool = False
    multiline: bool = False
    disabled: bool = False
    focused: bool = False
    scrolled: tuple[int, int] | None = None
    """Pixels, of how many."""
    color: str | None = None
    box: tuple[int, int, int, int] | None = None
    """Left, top, width, height in pixels of the page; only for what has no words."""

    @classmethod
    def read(cls, data: JsonObject) -> Self:
        fields: dict[str, Any] = dict(data)  # checked by the types of the script alone: it is ours
        fields.setdefault("id", None)
        for name in ("options", "scrolled", "box"):
            if name in fields:
                fields[name] = tuple(fields[name])
        if "color" in fields:
            fields["color"] = COLORS.get(fields["color"], fields["color"])
        return cls(**fields)

    def __str__(self) -> str:
        return "".join(self._parts())

    def _parts(self) -> Iterator[str]:
        yield "  " * self.depth
        yield f"[{self.id}] {self.role}" if self.id is not None else self.role
        if self.name:
            yield f" {quoted(self.name)}"
        if self.value is not None:
            yield f" value {quoted(self.value)}"
        if self.options:
            yield f" options {' '.join(map(quoted, self.options))}"
        for is_so, word, other in ((self.checked, "checked", "unchecked"), (self.expanded, "expanded", "collapsed")):
            if is_so is not None:
                yield f" {word if is_so else other}"
        for word in ("multiline", "selected", "disabled", "focused"):
            if getattr(self, word):
                yield f" {word}"
        if self.scrolled is not None:
            yield f" scrolled {self.scrolled[0]} of {self.scrolled[1]}"
        if self.color is not None:
            yield f" {self.color}"
        if self.box is not None:
            yield f" at {self.box[0]},{self.box[1]} size {self.box[2]}x{self.box[3]}"


def quoted(text: str) -> str:
    """Write a text between quotation marks, in one line."""
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    page: str
    """The name of the MiniWoB page."""
    task: str
    """What the page asks."""
    nodes: tuple[PageElement, ...]
    notes: tuple[str, ...] = ()
    """What happened besides: dialogs, blocked pages, actions that could not be done."""
    selection: str = ""
    """The text that is marked."""
    is_over: bool = False
    reward: float = 0.0
    """As the page gave it, in [-1, 1]."""
    past: tuple[str, ...] = field(default=(), compare=False)
    """The actions so far."""

    @classmethod
    def read(cls, page: str, text: str, past: Sequence[str] = ()) -> Self:
        data = json.loads(text)
        return cls(
            page=page,
            task=data["task"],
            nodes=tuple(map(PageElement.read, data["nodes"])),
            notes=tuple(data["notes"]),
            selection=data["selection"],
            is_over=data["isOver"],
            reward=float(data["reward"]),
            past=tuple(past),
        )

    def node(self, id: int) -> PageElement | None:
        return next((node for node in self.nodes if node.id == id), None)

    def noting(self, note: str) -> Self:
        """Return the same page with nothing but one note."""
        return replace(self, notes=(note,))


def show_elements(view: PageView, before: PageView | None = None, *, changes_only: bool = False) -> str:
    """Write a page for the agent; a star marks what is new or changed since `before`."""
    lines = [*view.notes, f"Task: {view.task}"]
    previous = {node.id: node for node in before.nodes} if before is not None else {}
    marked = [(node, before is not None and previous.get(node.id) != node) for node in view.nodes]
    listed = [(node, is_new) for node, is_new in marked if is_new or not changes_only or before is None]
    lines += [f"{'*' if is_new and node.id is not None else ''}{node}" for node, is_new in listed[:MAX_LINES]]
    if len(listed) > MAX_LINES:
        lines.append(f"({len(listed) - MAX_LINES} more elements)")
    present = {node.id for node in view.nodes}
    gone = [f"[{id}]" for id in previous if id is not None and id not in present]
    if gone:
        lines.append(f"Gone: {' '.join(gone)}")
    elif changes_only and before is not None and not any(is_new for _, is_new in marked):
        lines.append("Nothing changed.")
    if view.selection:
        lines.append(f"Marked text: {quoted(view.selection)}")
    return "\n".join(lines)
