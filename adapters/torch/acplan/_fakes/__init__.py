"""Fake tensors, their values if they are known, and state that is restored after a traced step.

This room knows _base, _files, _device. Start with known_values.py.
"""
