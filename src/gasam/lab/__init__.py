"""The experiments: tasks, training, tuning, analyses and reports; needs `pip install gasam[lab]`."""
