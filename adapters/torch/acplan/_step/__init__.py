"""One training step on fake tensors, recorded: acplan.trace.

This room knows _base, _files, _device, _fakes. Start with trace.py, then step.py.
"""
