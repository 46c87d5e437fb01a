"""The paper's tables and figures, and the verdicts on its claims."""
