"""Fake tensors, their values where they are known, and state that a traced step puts back.

It knows _base, _files, _device. Start with known_values.py.
"""
