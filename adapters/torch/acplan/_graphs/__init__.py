"""Joint graphs of torch.compile: their costs, their memory, and the plan of one.

This room knows _base, _files, _device, _program. Start with joint_graph.py.

Replaced in PyTorch (_base/patching.py says how to read the list):

    torch._functorch.partitioners.choose_saved_values_set, private
        pytorch_partitioner.py, choosing: PyTorch's partitioner saves what a plan keeps.
"""
