"""The solutions of MiniWoB's pages, as far as there are."""

from collections.abc import Mapping
from types import MappingProxyType

from envgym.envs.web._miniwob_clicks import CLICKS
from envgym.envs.web._miniwob_drawings import DRAWINGS
from envgym.envs.web._miniwob_forms import FORMS
from envgym.envs.web._miniwob_mail import MAIL
from envgym.envs.web._miniwob_solving import Oracle

ORACLES: Mapping[str, Oracle] = MappingProxyType({**CLICKS, **DRAWINGS, **FORMS, **MAIL})
"""Page -> what to do next, concluded from what the agent sees."""

_EASY = """
buy-ticket choose-list click-button click-button-sequence click-collapsible click-collapsible-nodelay click-color
click-dialog click-dialog-2 click-link click-option click-scroll-list click-shape click-tab click-test click-test-2
click-test-transfer click-widget copy-paste copy-paste-2 count-shape drag-box drag-circle drag-items draw-line
drag-single-shape email-inbox-delete email-inbox-important enter-date enter-text enter-text-2 enter-text-dynamic
enter-time find-greatest find-word focus-text focus-text-2 form-sequence-3 grid-coordinate highlight-text
highlight-text-2 identify-shape read-table scroll-text scroll-text-2 simple-algebra simple-arithmetic text-transform
unicode-test use-spinner visual-addition
"""
EASY = frozenset(_EASY.split())
"""Pages that take one action or two."""
