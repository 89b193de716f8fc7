"""Functions of other planners, solved by acplan; dataflow graphs.

This room knows _step, _program and what they know. Start with sac_milp.py.
"""
