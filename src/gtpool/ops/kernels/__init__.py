"""Triton kernels for padded batches; imported only for tensors on a GPU."""
