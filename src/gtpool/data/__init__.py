"""Reading graphs, their features and their splits."""
