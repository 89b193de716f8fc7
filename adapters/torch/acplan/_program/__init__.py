"""Questions to the program `acplan`: plan, frontier, compare, audit, profile, report.

This room knows _base, _files. Start with plan.py.
"""
