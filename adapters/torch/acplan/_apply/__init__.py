"""A plan in a model: units that save, skip and recompute as the plan says.

This room knows _base, _files: code that runs in training is not built on code that traces.
Start with README.md, then apply.py.
"""
