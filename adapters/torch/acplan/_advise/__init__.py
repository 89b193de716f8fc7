"""Advice on a step's memory: acplan.explain, acplan.best_batch, the levers.

This room knows _step, _program and what they know. Start with explain.py.
"""
