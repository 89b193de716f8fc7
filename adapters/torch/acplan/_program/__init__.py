"""Questions to the program `acplan`: plan, frontier, compare, profile, report.

It knows _base, _files. Start with plan.py.
"""
