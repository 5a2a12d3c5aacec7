"""A pooling layer in a PyG model of one's own: MUTAG, PyG's DataLoader, accuracy on a test part.

    python examples/layer_in_pyg.py

The layer takes and returns what those of PyG do, so that nothing else in the model has to know it.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

from gtpool import GTPool, load


class Net(nn.Module):
    """Convolve, keep half of the nodes, convolve again, average, classify."""

    def __init__(self, in_channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.first = GCNConv(in_channels, width)
        self.pool = GTPool(width, ratio=0.5, sampler="rwsv")
        self.second = GCNConv(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, data: Data) -> Tensor:
        """Give the logits of each graph of a batch."""
        x = self.first(data.x, data.edge_index).relu()
        x, edge_index, _, batch, _, _ = self.pool(x, data.edge_index, batch=data.batch)
        x = self.second(x, edge_index).relu()
        return self.head(global_mean_pool(x, batch))


def main() -> None:
    """Train for thirty epochs and print how many unseen graphs are classified rightly."""
    torch.manual_seed(0)
    graphs = load("MUTAG").to_pyg()  # a plain list of PyG's Data
    order = torch.randperm(len(graphs)).tolist()
    train = DataLoader([graphs[place] for place in order[:150]], batch_size=32, shuffle=True)
    test = DataLoader([graphs[place] for place in order[150:]], batch_size=38)

    model = Net(graphs[0].num_features, width=32, classes=2)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(30):
        for batch in train:
            adam.zero_grad()
            F.cross_entropy(model(batch), batch.y).backward()
            adam.step()

    model.eval()
    with torch.no_grad():
        right = sum(int((model(batch).argmax(1) == batch.y).sum()) for batch in test)
    print(f"{right} of {len(test.dataset)} test graphs right ({right / len(test.dataset):.1%})")


if __name__ == "__main__":
    main()
