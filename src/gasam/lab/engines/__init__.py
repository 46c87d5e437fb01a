"""The execution of many runs, and the measurement of their step times."""
