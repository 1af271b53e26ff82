"""What parties share that are language models: replies and samples, each by its own temperature and seed."""

from abc import abstractmethod
from collections.abc import Sequence

from envgym.agents.protocols import Sampling
from envgym.core.messages import Message, Role
from envgym.errors import InvalidInput, PartyFailure
from envgym.party import LanguageModel
from envgym.seeds import derive_seed


class SamplingParty(LanguageModel):
    """A language model whose replies depend on a seed and on the conversation."""

    def __init__(
        self, where: str, *, temperature: float, sampling_temperature: float, max_new_tokens: int, seed: int
    ) -> None:
        """Set how it samples; `where` names the party. Raises: InvalidInput: a setting is out of range."""
        got, do = sampling_temperature, "pass e.g. 1; only replies may take the most probable tokens"
        InvalidInput.unless(got > 0, "sampling_temperature", "be above 0", got, where=where, do=do)
        self._replies = Sampling(temperature=temperature, max_new_tokens=max_new_tokens)
        self._samples = Sampling(temperature=sampling_temperature, max_new_tokens=max_new_tokens)
        for sampling in (self._replies, self._samples):
            sampling.check(where)
        self._where, self._seed = where, seed

    @abstractmethod
    def say(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        """Return the next message. Raises: PartyFailure: it could not be had."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next message. Raises: PartyFailure: it could not be had, or is empty."""
        texts = [text for message in messages for text in (message.role.value, message.content)]
        return self._message(messages, self._replies, derive_seed(self._where, self._seed, *texts))

    def sample(self, messages: Sequence[Message], *, seed: int) -> Message:
        """Return a message that is sampled by `seed`, as far as the model takes one. Raises: as `reply`."""
        return self._message(messages, self._samples, seed)

    def _message(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> Message:
        content = self.say(messages, sampling, seed)
        if not content.strip():
            raise PartyFailure(f"{self._where} said nothing in {sampling.max_new_tokens} tokens")
        return Message(role=Role.ASSISTANT, content=content)
