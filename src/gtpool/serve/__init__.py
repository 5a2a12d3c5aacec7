"""A saved model behind HTTP: predictions, explanations, a page to look at."""
