"""Predictions beside a step that is traced again, and beside a real device.

This room knows _apply, _step, _program and what they know. Start with verify.py.
"""
