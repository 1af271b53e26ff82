"""TRL's GRPO trainer on the ledger's prompts: its own loop, with every turn of a fixed length taken for a tool call."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from benchmarks._clock import timed
from benchmarks._talks import TOOL, entry, number_of, question, score

REPLY_TOKENS: Final = 64
"""At most so many tokens stand between two turns."""
_METHODS: Final = {
    "_generate": "generate",
    "_generate_and_score_completions": "prepared",
    "_compute_loss": "forward",
    "training_step": "trained",
}


def look_up(number: int) -> str:
    """
    Read an entry of the ledger.

    Args:
        number: The entry's number.
    """
    return entry(number)


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML with calls and their results, which the trainer asks for; the tool is described in the system message."""


def make_trainer(model: Any, tokenizer: Any, case: Any, *, system: str, steps: int, folder: str) -> Any:
    """Build the trainer of a case.

    Args:
        model: a PreTrainedModel, whose dtype is that of everything.
        tokenizer: of the model.
        case: benchmarks.trl_step.Case.
        system: text of the system message, with the tools as the agent lists them.
        steps: of the run.
        folder: where the trainer may write.

    Returns: trl.GRPOTrainer.
    """
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback

    trl: Any = import_module("trl")  # does not say what it exports

    messages = [prompt(system, 2 * index) for index in range(steps)]
    config = trl.GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=case.group,
        num_generations=case.group,
        max_completion_length=case.turns * (case.tokens + REPLY_TOKENS),
        generation_kwargs={"max_new_tokens": case.tokens, "min_new_tokens": case.tokens},
        max_tool_calling_iterations=case.turns - 1,
        max_steps=steps,
        learning_rate=1e-6,
        max_grad_norm=1.0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    if case.turns > 1:
        tokenizer.chat_template = CHAT_TEMPLATE
        tokenizer.response_template = "scripted"  # the trainer asks whether there is one; `scripted_calls` reads turns
    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": messages}),
        reward_funcs=_reward,
        tools=[look_up] if case.turns > 1 else None,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def prompt(system: str, index: int) -> list[dict[str, str]]:
    """Return the messages that an episode begins with."""
    return [{"role": "system", "content": system}, {"role": "user", "content": question(1000 + index)}]


def _reward(completion_ids: Sequence[Sequence[int]], **others: object) -> list[float]:
    del others
    return [score(entry(number_of(ids))) for ids in completion_ids]


@contextmanager
def scripted_calls() -> Iterator[None]:
    """Take every turn for a call of the tool, whatever it says: a small model would hardly make one."""
    grpo_trainer: Any = import_module("trl.trainer.grpo_trainer")  # as above

    def read(tokenizer: Any, ids: Sequence[int], **others: object) -> dict[str, object]:
        del others
        call = {"name": TOOL, "arguments": {"number": number_of(ids)}}
        return {
            "role": "assistant",
            "content": tokenizer.decode(ids, skip_special_tokens=True),
            "tool_calls": [{"type": "function", "function": call}],
        }

    before = grpo_trainer.parse_response
    grpo_trainer.parse_response = read
    try:
        yield
    finally:
        grpo_trainer.parse_response = before


def train(trainer: Any, after_step: Callable[[float, dict[str, float], int], bool]) -> None:
    """Train until `after_step` is true, which gets the seconds of a step, those of its phases, and its new tokens."""
    from transformers import TrainerCallback

    with timed(type(trainer), _METHODS) as spent, scripted_calls(), warnings.catch_warnings():
        warnings.simplefilter("ignore")

        class Clock(TrainerCallback):
            started = 0.0

            def on_step_begin(self, *_: object, **__: object) -> None:
                spent.update(dict.fromkeys(spent, 0.0))
                self.started = time.perf_counter()

            def on_step_end(self, args: object, state: object, control: Any, **_: object) -> None:
                seconds = time.perf_counter() - self.started
                sampled = trainer._metrics["train"]["completions/mean_length"][-1] * trainer.num_generations
                control.should_training_stop |= after_step(seconds, phases(seconds, spent), round(sampled))

        trainer.add_callback(Clock())
        trainer.train()


def phases(seconds: float, spent: dict[str, float]) -> dict[str, float]:
    """Return what each phase of a step took, from what the trainer's methods took, one inside another."""
    return {
        "generate": spent["generate"],
        "score": spent["prepared"] - spent["generate"],
        "forward": spent["forward"],
        "backward": spent["trained"] - spent["prepared"] - spent["forward"],
        "update": seconds - spent["trained"],
        "other": 0.0,
    }
