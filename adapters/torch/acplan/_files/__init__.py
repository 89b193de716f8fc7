"""The values that are files: Trace, Plan, Profile, Verification; and how they are shown.

This room knows _base. Start with trace_file.py and plan_file.py.
"""
