"""The parameters of a model that train: read and set as a whole."""

from collections.abc import Mapping

from torch import Tensor, nn

from envgym.errors import InvalidInput, sentence


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that train, by name, as they lie in the model."""
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


def set_trained_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give every parameter that trains another value. Raises: InvalidInput: other names or shapes."""
    mine = trained_weights(model)
    shapes, expected = ({name: tuple(w.shape) for name, w in of.items()} for of in (weights, mine))
    if shapes != expected:
        wrong = sorted(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))[:3]
        do = "return the names and shapes of ControlContext.weights"
        raise InvalidInput(sentence("weights", "be those that train", f"others at {wrong}", where="learner", do=do))
    for name, weight in mine.items():
        weight.copy_(weights[name])
