"""Experiment trackers such as TensorBoard: they follow a run while it trains, or receive its finished record."""
