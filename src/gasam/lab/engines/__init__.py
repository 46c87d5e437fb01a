"""The execution of many runs by an engine, and the measurement of their step times."""
