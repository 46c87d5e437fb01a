"""Tables, figures and pages, made from records alone."""
