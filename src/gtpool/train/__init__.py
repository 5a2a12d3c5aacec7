"""One run: a module and graphs in, epochs out."""
