"""The models of compare_zoo.py: those whose real steps are compared, and more."""

import architectures_diffusers
import architectures_further
import architectures_further_diffusers
import architectures_transformers
from architectures import Architecture

ZOO: dict[str, Architecture] = (
    architectures_transformers.ARCHITECTURES
    | architectures_further.ARCHITECTURES
    | architectures_diffusers.ARCHITECTURES
    | architectures_further_diffusers.ARCHITECTURES
)

_ROUTED = (
    "sizes depend on which expert the router chooses for a token, which a trace, without "
    "data, does not know: an error says so"
)

# The models of which something does not hold, and why.
EXCEPTIONS = {
    "dbrx": _ROUTED,
    "jetmoe": _ROUTED,
    "switch_transformers": _ROUTED,
    "falcon": "an operator on a constant in the host's memory (`lift_fresh`) runs again where "
    "the plan leaves it out; memory, losses and gradients are as predicted",
    "ibert": "asks for values of activations (`.item()`), which a trace does not compute: an "
    "error says so",
    "wav2vec2": "the time steps to mask are drawn at random, and the step traced again drew "
    "others; losses and gradients of the real step are the same",
    "recurrent_gemma": "its recurrence keeps the last state as an attribute; with units "
    "around it a tensor that its own autograd function saved is held longer than "
    "simulated, and peaks are up to 2,048 bytes higher; losses and gradients are the same",
}
