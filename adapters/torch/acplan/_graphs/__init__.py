"""Joint graphs of torch.compile: their costs, their memory, and the plan of one.

This room knows _base, _files, _device, _program. Start with joint_graph.py.
"""
