"""Imports torchtitan once, in the process of which the ranks of a run are copies."""

import torchtitan_training

torchtitan_training.stand_in_for_a_device()

import torchtitan.trainer  # noqa: E402, F401 - after the stand-in

import acplan.torchtitan  # noqa: E402, F401 - so that no rank imports it again
