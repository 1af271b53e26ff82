"""The actions on a page as typed tools, beside those in text."""

from collections.abc import Callable

from envgym.envs.web._miniwob_actions import ElementPoint, PageCommand
from envgym.tools import tool


class PageTools:
    """What an agent can call: each call is a command of the page."""

    def __init__(self, call: Callable[[PageCommand], str]) -> None:
        """Send commands to `call`, which returns what the agent is shown. It raises ToolError for a refused command."""
        self._call = call

    @tool
    def click(self, element: int, x: float | None = None, y: float | None = None) -> str:
        """Click an element.

        Args:
            element: Its number.
            x: Pixels from its left edge; its middle by default.
            y: Pixels from its upper edge; its middle by default.
        """
        return self._call(PageCommand(name="click", start=ElementPoint(element, x, y)))

    @tool
    def hover(self, element: int, x: float | None = None, y: float | None = None) -> str:
        """Move the pointer over an element.

        Args:
            element: Its number.
            x: Pixels from its left edge; its middle by default.
            y: Pixels from its upper edge; its middle by default.
        """
        return self._call(PageCommand(name="hover", start=ElementPoint(element, x, y)))

    @tool
    def drag(
        self,
        element: int,
        to: int,
        x: float | None = None,
        y: float | None = None,
        to_x: float | None = None,
        to_y: float | None = None,
    ) -> str:
        """Drag from one element to another; over a text this marks it.

        Args:
            element: Number of the element where the button is pressed.
            to: Number of the element where it is released; it may be the same.
            x: Pixels from the left edge of the first; its middle by default.
            y: Pixels from the upper edge of the first.
            to_x: Pixels from the left edge of the second.
            to_y: Pixels from the upper edge of the second.
        """
        return self._call(PageCommand(name="drag", start=ElementPoint(element, x, y), end=ElementPoint(to, to_x, to_y)))

    @tool
    def fill(self, element: int, text: str) -> str:
        """Replace the text of a field.

        Args:
            element: Its number.
            text: The new text.
        """
        return self._call(PageCommand(name="fill", start=ElementPoint(element), text=text))

    @tool
    def select(self, element: int, options: list[str]) -> str:
        """Choose options of a list.

        Args:
            element: Its number.
            options: What the options say; exactly one, unless the list takes several.
        """
        return self._call(PageCommand(name="select", start=ElementPoint(element), options=tuple(options)))

    @tool
    def press(self, keys: list[str], element: int | None = None) -> str:
        """Press keys, one after the other.

        Args:
            keys: Characters, or Enter, Tab, Backspace, ArrowDown and so on; Shift+Tab, Control+a.
            element: Number of an element that gets the focus first.
        """
        place = None if element is None else ElementPoint(element)
        return self._call(PageCommand(name="press", keys=tuple(keys), start=place))

    @tool
    def scroll(self, pixels: int, element: int | None = None) -> str:
        """Scroll the page, or an element.

        Args:
            pixels: How far down; negative is up.
            element: Number of the element; the page by default.
        """
        place = None if element is None else ElementPoint(element)
        return self._call(PageCommand(name="scroll", pixels=pixels, start=place))

    @tool
    def goto(self, url: str) -> str:
        """Open another page.

        Args:
            url: Its address.
        """
        return self._call(PageCommand(name="goto", text=url))

    @tool
    def back(self) -> str:
        """Go back to the page before this one."""
        return self._call(PageCommand(name="back"))

    @tool
    def answer(self, text: str = "") -> str:
        """Give up.

        Args:
            text: Why.
        """
        return self._call(PageCommand(name="answer", text=text))
