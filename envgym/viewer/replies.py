"""How the viewer writes JSON."""

import json
from typing import Any

from fastapi import Response

from envgym.core.json_types import well_formed


class WellFormedJson(Response):
    """JSON whose text may come from a model: lone surrogates are replaced."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:  # any JSON
        """Write it."""
        return well_formed(json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))).encode()
