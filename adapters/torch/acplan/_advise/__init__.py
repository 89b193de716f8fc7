"""What would help: acplan.explain, acplan.best_batch, the levers.

It knows _step, _program and what they know. Start with explain.py.
"""
