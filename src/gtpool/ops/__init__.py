"""Functions on tensors, without parameters."""
