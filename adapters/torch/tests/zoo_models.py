"""The models of compare_zoo.py: those whose real steps are compared, and more."""

from architectures import Architecture

import architectures_diffusers
import architectures_further
import architectures_further_diffusers
import architectures_transformers

ZOO: dict[str, Architecture] = (
    architectures_transformers.ARCHITECTURES
    | architectures_further.ARCHITECTURES
    | architectures_diffusers.ARCHITECTURES
    | architectures_further_diffusers.ARCHITECTURES
)
