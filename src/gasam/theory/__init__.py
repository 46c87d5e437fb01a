"""The paper's theory as trials: divergences, parameter shifts, bounds."""
