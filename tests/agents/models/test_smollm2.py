"""SmolLM2 from its wheel: converted whole, and it still knows what it knew."""

import pytest
import torch

from envgym.agents.models.loading import load
from envgym.agents.models.smollm2 import find_gguf
from envgym.agents.rendering.factory import AutoRendererFactory
from envgym.core.messages import Message, Role
from envgym.errors import InvalidInput


@pytest.mark.slow
def test_smollm2_answers_a_question() -> None:
    pytest.importorskip("gguf")
    try:
        find_gguf()
    except InvalidInput as missing:
        pytest.skip(str(missing))
    loaded = load("smollm2")
    renderer = AutoRendererFactory()(loaded.tokenizer)
    question = Message(role=Role.USER, content="What is the capital of France? Answer briefly.")
    prompt = [token for segment in renderer.start([question], []).segments for token in segment.token_ids]
    ids = loaded.model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)  # type: ignore[operator]  # typed as a Tensor by torch
    action = renderer.parse(ids[0, len(prompt) :].tolist())
    assert "Paris" in action.content
    assert ids[0, -1] in renderer.stop_token_ids
