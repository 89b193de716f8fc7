"""acplan as the partitioner of torch.compile, and plans of compiled steps.

This room knows _graphs, _step and what they know. Start with compile.py.
"""
