"""A plan in a model: units that save, skip and recompute as the plan says.

It knows _base, _files: what runs in training is not built on what traces. Start with
README.md, then apply.py.
"""
