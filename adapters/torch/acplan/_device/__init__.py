"""What a device has and does: its kernels, their run-times and workspaces, a fake CUDA.

It knows _base. Start with devices.py.
"""
