"""Triton kernels for batches of fixed capacity; imported only where a tensor is on a GPU."""
