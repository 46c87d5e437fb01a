"""Fault campaigns: inject thousands of faults, and check after each that nothing was lost."""
