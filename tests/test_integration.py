"""What users of PyG do with the layer."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from contract import close
from torch import nn
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, Sequential, global_mean_pool
from torch_geometric.nn.pool.select import SelectTopK

import gtpool
from gtpool import GTPool
from gtpool.data.sources import load


class Classifier(nn.Module):
    """Convolution, pool, a second convolution if asked for, mean read-out, linear map."""

    def __init__(self, *, conv_after: bool = False, **options) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = GCNConv(7, 16)
        self.pool = GTPool(16, **options)
        self.conv_after = GCNConv(16, 16) if conv_after else None
        self.head = nn.Linear(16, 2)

    def forward(self, x, edge_index, batch=None):
        x = self.conv(x, edge_index).relu()
        x, edge_index, _, batch, _, _ = self.pool(x, edge_index, batch=batch)
        if self.conv_after is not None:
            x = self.conv_after(x, edge_index).relu()
        return self.head(global_mean_pool(x, batch))


def mutag_batches(size: int) -> list:
    return list(DataLoader(load("MUTAG").to_pyg(), batch_size=size))


def test_layer_stands_in_a_pyg_sequential():
    six = "x, edge_index, edge_attr, batch -> x, edge_index, edge_attr, batch, perm, score"
    model = Sequential(
        "x, edge_index, edge_attr, batch",
        [
            (GCNConv(7, 16), "x, edge_index -> x"),
            (GTPool(16), six),
            (GTPool(16, ratio=2), six),
            (global_mean_pool, "x, batch -> x"),
            nn.Linear(16, 2),
        ],
    )
    batch = mutag_batches(188)[0]
    out = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
    assert out.shape == (188, 2)
    assert out.isfinite().all()


def test_layer_pools_batches_of_a_data_loader():
    pool, seen = GTPool(7), 0
    for batch in mutag_batches(50):
        out = pool(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
        sizes = batch.batch.bincount()
        assert out.batch.bincount().tolist() == ((sizes + 1) // 2).tolist()
        assert out.edge_attr.shape == (out.edge_index.size(1), 4)
        assert torch.equal(out.batch, batch.batch[out.perm])
        seen += len(sizes)
    assert seen == 188


def test_a_small_classifier_learns():
    model, batch = Classifier(conv_after=True, gate="tanh"), mutag_batches(188)[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        out = model(batch.x, batch.edge_index, batch.batch)
        loss = nn.functional.cross_entropy(out, batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def explain(model: nn.Module):
    """Explain the first molecule; PyG zeroes mask entries that the model gave no gradient."""
    molecule = load("MUTAG").to_pyg()[0]
    explainer = Explainer(
        model,
        GNNExplainer(epochs=5),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={
            "mode": "multiclass_classification",
            "task_level": "graph",
            "return_type": "raw",
        },
    )
    return explainer(molecule.x, molecule.edge_index)


def test_explainer_reaches_edges_and_features_through_the_pool():
    explanation = explain(Classifier())
    assert explanation.edge_mask.shape == (38,)
    assert (explanation.edge_mask > 0).all()  # kept nodes attend to dropped ones: all edges count
    assert explanation.edge_mask.unique().numel() == 38
    assert explanation.node_mask.any(1).all()


def test_explainer_needs_to_know_of_a_convolution_after_the_pool():
    # The mask has one entry for each edge of the input. PyG puts it on every convolution, and one
    # after a pool has fewer edges; `explain = False` tells PyG to leave that one out. The same is
    # true of PyG's own poolers.
    model = Classifier(conv_after=True)
    with pytest.raises(AssertionError):
        explain(model)
    model = Classifier(conv_after=True)
    model.conv_after.explain = False
    explanation = explain(model)
    assert (explanation.edge_mask > 0).all()
    assert explanation.edge_mask.unique().numel() == 38


def test_compiled_model_gives_what_eager_gives():
    torch.compiler.reset()
    model, batch = Classifier(conv_after=True, gate="tanh", heads=4), mutag_batches(16)[0]
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager")
    gradients = []
    for network in (model, compiled):
        out = network(batch.x, batch.edge_index, batch.batch)
        nn.functional.cross_entropy(out, batch.y).backward()
        gradients.append([p.grad for p in network.parameters()])
    for eager, ours in zip(*gradients, strict=True):
        close(eager, ours)


@pytest.mark.parametrize("gate", [None, "tanh"])
def test_bf16_autocast(gate):
    model, batch = Classifier(gate=gate, heads=4, out_proj=True), mutag_batches(64)[0]
    with torch.autocast("cpu", torch.bfloat16):
        pooled = model.pool(
            model.conv(batch.x, batch.edge_index), batch.edge_index, None, batch.batch
        )
        loss = model(batch.x, batch.edge_index, batch.batch).float().square().sum()
    sizes = batch.batch.bincount()
    assert pooled.batch.bincount().tolist() == ((sizes + 1) // 2).tolist()
    assert pooled.x.isfinite().all()
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


def test_model_survives_deepcopy_pickle_and_state_dict(tmp_path):
    model, batch = Classifier(gate="tanh"), mutag_batches(20)[0]
    args = batch.x, batch.edge_index, batch.batch
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = Classifier(gate="tanh")
    other.pool.reset_parameters()
    assert not torch.equal(model(*args), other(*args))
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    for twin in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert torch.equal(model(*args), twin(*args))


def test_public_names_are_listed_and_found():
    from gtpool import GTPool, SelectRWS, SelectRWSV  # noqa: PLC0415

    assert issubclass(GTPool, nn.Module)
    assert issubclass(SelectRWS, SelectTopK)
    assert issubclass(SelectRWSV, SelectTopK)
    assert {"GTPool", "SelectRWS", "SelectRWSV", "unpool", "POOLS"} <= set(gtpool.__all__)
    assert set(gtpool.__all__) <= set(dir(gtpool))
    assert all(getattr(gtpool, name) is not None for name in gtpool.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gtpool' has no attribute 'GTPol'"):
        _ = gtpool.GTPol


@pytest.mark.parametrize(
    "code",
    [
        "import gtpool; dir(gtpool); gtpool.__version__",
        "import sys; sys.argv = ['gtpool', '--help']; from gtpool.cli import main; main()",
        "import sys; sys.argv = ['gtpool', '--version']; from gtpool.cli import main; main()",
    ],
    ids=["import", "help", "version"],
)
def test_torch_is_imported_only_when_needed(code):
    check = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    done = subprocess.run(
        [sys.executable, "-c", check + code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"gate": "tanh", "heads": 4, "order": "score"}], ids=str)
def test_layer_on_cuda_gives_what_the_cpu_gives(options):
    torch.manual_seed(0)
    batch = mutag_batches(188)[0]
    x = torch.randn(batch.num_nodes, 16, dtype=torch.double)
    runs = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        pool = GTPool(16, **options).double().to(device)
        args = (x, batch.edge_index, batch.edge_attr, batch.batch)
        out = pool(*(arg.to(device) for arg in args))
        out.x.sin().sum().backward()
        asking = (p for p in pool.parameters() if p.requires_grad)
        runs.append([value.cpu() for value in (*out, *(p.grad for p in asking))])
    assert torch.equal(runs[0][4], runs[1][4])
    for on_cpu, on_cuda in zip(*runs, strict=True):
        close(on_cpu, on_cuda)
