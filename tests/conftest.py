import torch

# Two test processes on two cores: more threads each would wait for one another.
torch.set_num_threads(1)
