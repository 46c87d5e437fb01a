"""The paper's tables and figures."""
