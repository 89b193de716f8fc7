"""What all rooms use: errors, the program, tensors, operators, parts of objects.

It knows PyTorch alone. Start with tensors.py and operators.py.
"""
