"""acplan as the partitioner of torch.compile, and plans of compiled steps.

It knows _graphs, _step and what they know. Start with compile.py.
"""
