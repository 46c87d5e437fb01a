"""Everything that runs experiments; needs `pip install gasam[lab]`."""
