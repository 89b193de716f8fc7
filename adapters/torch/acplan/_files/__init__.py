"""The values that are files: Trace, Plan, Profile, Verification; how they are shown.

It knows _base. Start with trace_file.py and plan_file.py.
"""
