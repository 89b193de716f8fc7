"""The code that trainers share: a step as a trainer runs it, planned once for all ranks.

This room knows _apply, _step, _program, _verify. Start with trainer_step.py.
"""
