"""The search for epsilon: strategy, journal, tries, and what was found."""
