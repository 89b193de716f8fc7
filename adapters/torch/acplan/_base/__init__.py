"""The code that all rooms use: errors, the program, tensors, operators, parts of objects.

This room knows PyTorch alone. Start with tensors.py and operators.py.
"""
