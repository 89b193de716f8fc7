"""One training step on fake tensors, recorded: acplan.trace.

It knows _base, _files, _device, _fakes. Start with trace.py, then step.py.
"""
