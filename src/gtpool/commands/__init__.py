"""Commands of `gtpool`, which import torch only when they run."""
