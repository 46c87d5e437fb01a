"""Families of models: settings, encoding, loss and metric; `family.py` has what all of them share."""
