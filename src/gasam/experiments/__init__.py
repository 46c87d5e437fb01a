"""The paper's experiments: tasks, methods, one training loop, records, comparisons and tables.

Needs `pip install gasam[experiments]`. The command `gasam` does all of it; the modules are for use from Python.
"""
