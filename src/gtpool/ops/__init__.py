"""Numbers without state: tensors in, tensors out, no parameters."""
