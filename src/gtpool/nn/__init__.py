"""Building blocks with parameters, each written once for one run and for many."""
