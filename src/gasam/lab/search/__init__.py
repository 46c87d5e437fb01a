"""Searches for walks and for settings: `question` asks, `study` runs the trials, `finding` answers."""
