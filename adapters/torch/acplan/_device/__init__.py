"""The properties of a device: its kernels, their run-times and workspaces, a fake CUDA.

This room knows _base. Start with devices.py.
"""
