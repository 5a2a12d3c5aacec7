import copy
import gzip
import json

import pytest
import torch
from contract import CHANNELS, close, pack, ring
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from gtpool import GTPool
from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.memory import read_graphs
from gtpool.data.inference import read_schema
from gtpool.data.molecule import atom_numbers, read_molecules
from gtpool.data.sources import load
from gtpool.estimator import GraphClassifier, GraphRegressor
from gtpool.explain import (
    Explanation,
    compare_samplers,
    connectivity,
    diversity,
    explain,
    explain_source,
    name_nodes,
    trace,
)
from gtpool.model.bundle import Bundle, load_bundle, save_bundle
from gtpool.model.classifier import Classifier
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import SAMPLERS, round_scores
from gtpool.ops.segment import layout_from_batch
from gtpool.pool import KINDS, POOLS
from gtpool.spec import ModelSpec
from gtpool.study.inputs import shape_of
from gtpool.train.fit import predict

DROPPING = [name for name, kind in KINDS.items() if kind == "dropping"]
OPTIONS = [
    *({"pool": pool} for pool in DROPPING),
    {"pool": "gtpool", "pool_options": {"heads": 2, "gate": "tanh", "order": "score"}},
    {"pool": "gtpool", "pool_options": {"sampler": "topk"}, "ratio": 4},
    {"pool": "sagpool", "pool_options": {"sampler": "rwsv"}, "conv": "gin"},
    {"pool": "asap", "pool_options": {"sampler": "rws"}, "combine": "cat"},
    {"read_input": True, "convs_per_level": 2, "jump": True},
]
few = settings(max_examples=15, deadline=None, derandomize=True, database=None)


@st.composite
def one_graph(draw):
    """A small graph, loops and lone nodes and repeated edges included."""
    count = draw(st.integers(1, 9))
    node = st.integers(0, count - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=14))
    back = [(target, source) for source, target in edges]
    pairs = edges + back if draw(st.booleans()) else edges
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    x = torch.randn(count, 4, generator=random)
    ends = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T
    return GraphDataset.from_pyg([Data(x, ends, y=torch.tensor([0]))])


@pytest.fixture(scope="module")
def mutag():
    return load("MUTAG")


def network(data, **options):
    torch.manual_seed(0)
    spec = ModelSpec(**{"width": 16, **options})
    return Classifier(spec, shape_of(data)).eval()


def named(data, outputs):
    """Say that a dataset has so many classes."""
    names = tuple(map(str, range(outputs)))
    return GraphDataset(
        *(data.x, data.edge_index, data.edge_attr, data.sizes, data.edge_counts, data.y),
        type(data.schema)("graphs", "classes", names, data.schema.recipe),
    )


def by_hand(model, graph):
    """Run the parts of a model one after the other; the kept nodes of each step, and the logits."""
    x, edges, attr, level = graph.x, graph.edge_index, graph.edge_attr, graph.levels[0]

    def here():
        return PackedGraph(edges, attr, level)

    nodes, kept, reads = torch.arange(x.size(0)), [], []
    for blocks, pool in zip(model.levels, model.pools, strict=True):
        x, _ = model._convolve(blocks, x, here(), None, len(kept))
        if model.spec.read_input and not reads:
            reads.append(model.readouts[0](x, here()))
        x, edges, attr, batch, perm, _ = pool(x, edges, attr, level=level)
        level, nodes = layout_from_batch(batch), nodes[perm]
        kept.append(nodes.tolist())
        reads.append(model.readouts[len(reads)](x, here()))
    h = torch.cat(reads, 1) if model.spec.combine == "cat" else sum(reads)
    return kept, model.head(h)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_levels_are_those_of_the_model_itself(mutag, options):
    model = network(mutag, **options)
    for index in (0, 50, 187):
        told = explain(model, mutag, index, importance=False)
        own = predict(model, mutag, torch.tensor([index]))
        torch.testing.assert_close(torch.tensor([told.logits]), own, rtol=0, atol=0)
        kept, logits = by_hand(model, mutag.take([index]))
        assert [list(view.kept) for view in told.levels] == kept
        close(logits.detach(), own)
        before = [tuple(range(told.nodes)), *(view.kept for view in told.levels[:-1])]
        assert [view.nodes for view in told.levels] == before
        for view in told.levels:
            assert len(view.score) == len(view.nodes)
            assert set(view.topk) <= set(view.nodes)
            assert len(view.topk) == len(view.kept)
            assert {node for pair in view.edges for node in pair} <= set(view.nodes)


@few
@given(one_graph(), st.sampled_from([0.3, 0.5, 2]), st.sampled_from([1, 2, 4]))
def test_attention_is_that_of_the_dense_matrix(data, ratio, heads):
    options = {"heads": heads, "sampler": "rws"}
    model = network(named(data, 2), ratio=ratio, levels=2, pool_options=options, pool="gtpool")
    steps = trace.trace_pooling(model, data.take([0]))[1]
    told = explain(model, named(data, 2), importance=False)
    for step, view in zip(steps, told.levels, strict=True):
        pool, width = step.pool, 16 // heads
        q, k = pool.query(step.x), pool.key(step.x)
        mass = torch.zeros(len(view.nodes))
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            matrix = torch.softmax(q[:, part] @ k[:, part].T / width**0.5, 1)
            mass += matrix[step.out.perm].sum(0) / heads
        close(torch.tensor(view.attention), (mass / len(view.kept)).detach())
        assert sum(view.attention) == pytest.approx(1, abs=1e-5)


def test_attention_of_a_large_graph_is_taken_in_rows(mutag, monkeypatch):
    model = network(mutag)
    whole = explain(model, mutag, importance=False)
    monkeypatch.setattr(trace, "MAX_ATTENTION_ENTRIES", 1)
    rows = explain(model, mutag, importance=False)
    for one, other in zip(whole.levels, rows.levels, strict=True):
        close(torch.tensor(one.attention), torch.tensor(other.attention))


@few
@given(one_graph(), st.sampled_from(OPTIONS[:-1]))
def test_score_is_what_the_nodes_were_chosen_by(data, options):
    model = network(named(data, 2), levels=2, **options)
    steps = trace.trace_pooling(model, data.take([0]))[1]
    for step, view in zip(
        steps, explain(model, named(data, 2), importance=False).levels, strict=True
    ):
        score, pool = torch.tensor(view.score), step.pool
        kept = [view.nodes.index(node) for node in view.kept]
        if isinstance(pool, GTPool):
            parts = torch.tensor([view.global_score, view.local_score])
            close(pool.lam * parts[0] + (1 - pool.lam) * parts[1], score)
            close(score.softmax(0)[kept], step.out.score)
        else:
            assert (view.global_score, view.local_score, view.attention) == (None,) * 3
            close(score[kept], step.out.score)
        sampler = getattr(pool, "sampler", "topk")
        if sampler == "topk":
            assert view.topk == view.kept
        else:
            chosen = round_scores(score).topk(len(kept)).values.min()
            lowest = min(round_scores(score)[view.nodes.index(node)] for node in view.topk)
            assert lowest == chosen


def test_topk_is_what_the_same_model_with_topk_keeps_first(mutag):
    model = network(mutag, pool="gtpool", pool_options={"sampler": "rws"})
    twin = network(mutag, pool="gtpool", pool_options={"sampler": "topk"})
    twin.load_state_dict(model.state_dict())
    differ = 0
    for index in range(0, 188, 20):
        ours, its = (
            explain(part, mutag, index, importance=False).levels[0] for part in (model, twin)
        )
        assert ours.topk == its.kept
        differ += ours.topk != ours.kept
    assert differ


def test_a_model_with_topk_is_shown_what_it_kept_though_its_scores_are_flat(mutag):
    model = network(mutag, pool="sagpool")
    with torch.no_grad():
        for pool in model.pools:
            pool.theta.mul_(1e4)
    told = explain(model, mutag, 3, importance=False)
    assert len({abs(score) for score in told.levels[0].score}) < told.nodes / 2
    for view in told.levels:
        assert view.topk == view.kept


def test_path_leads_every_survivor_back_to_the_input(mutag):
    told = explain(network(mutag), mutag, 3, importance=False)
    paths = told.paths()
    assert [path[0] for path in paths] == list(range(told.nodes))
    for step, view in enumerate(told.levels, 1):
        left = {node: path[step] for node, path in enumerate(paths) if len(path) > step}
        assert {place: node for node, place in left.items()} == dict(enumerate(view.kept))


@pytest.mark.parametrize("pool", ["none", *(name for name in KINDS if name not in DROPPING)])
def test_models_that_drop_no_nodes_have_no_levels(mutag, pool):
    model = network(mutag, pool=pool)
    told = explain(model, mutag, 5, epochs=10)
    assert told.levels == ()
    assert len(told.importance) == told.nodes
    close(torch.tensor([told.logits]), predict(model, mutag, torch.tensor([5])))


@pytest.mark.parametrize("pool", ["none", *POOLS])
def test_importance_is_never_all_zero_though_selection_is_hard(mutag, pool):
    model = network(mutag, pool=pool)
    told = explain(model, mutag, 100, epochs=10)
    assert all(0 <= value <= 1 for value in told.importance)
    assert sum(value > 0 for value in told.importance) > told.nodes / 2
    assert len(set(told.importance)) > told.nodes / 2


def test_importance_of_a_model_that_is_sure_beyond_all_digits(mutag):
    model = network(mutag)
    with torch.no_grad():
        model.head[-1].weight.mul_(1e5)
    told = explain(model, mutag, epochs=20)
    assert told.fidelity.p == 1
    assert min(told.importance) > 0


def test_the_node_that_decides_is_the_most_important():
    x = torch.zeros(9, 2)
    x[:, 1] = 1.0
    x[6] = torch.tensor([1.0, 0.0])
    ends = torch.tensor(ring(9)).T
    data = named(GraphDataset.from_pyg([Data(x, ends, y=torch.tensor([0]))]), 2)
    model = network(data, pool="none", levels=1, conv="linear", readout="sum", width=2)
    with torch.no_grad():
        for part in model.parameters():
            part.zero_()
        model.levels[0][0].conv.linear.weight.copy_(torch.eye(2))
        for layer in (0, 3):
            model.head[layer].weight[:, 0] = 1.0
        model.head[-1].weight[1] = 4.0
        model.head[-1].bias[0] = 1.0
    told = explain(model, data)
    assert told.target == 1
    assert max(told.importance) == told.importance[6]
    assert told.fidelity.nodes[0] == 6
    assert told.fidelity.without < 0.5 < told.fidelity.alone
    assert told.fidelity.alone == pytest.approx(told.fidelity.p)


def test_the_same_seed_gives_the_same_and_leaves_everything_as_it_was(mutag):
    model = network(mutag, dropout=0.5).train()
    before, random = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    one, two = (explain(model, mutag, 2, epochs=15, seed=7) for _ in range(2))
    assert one == two
    assert explain(model, mutag, 2, epochs=15, seed=8).importance != one.importance
    assert torch.equal(torch.random.get_rng_state(), random)
    assert model.training
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    assert all(part.grad is None for part in model.parameters())
    assert not any(part._forward_hooks for part in model.modules())
    wanted = {name: "theta" not in name for name, _ in model.named_parameters()}
    assert {name: part.requires_grad for name, part in model.named_parameters()} == wanted


@pytest.mark.parametrize("pool", ["gtpool-v", "sagpool", "none"])
def test_fidelity_is_the_probability_with_nodes_taken_away(mutag, pool):
    model = network(mutag, pool=pool)
    graph = mutag.to_pyg()[4]
    told = explain(model, mutag, 4, epochs=10)
    named_nodes = told.fidelity.nodes
    assert len(named_nodes) == told.nodes // 2
    others = [node for node in range(told.nodes) if node not in named_nodes]
    floor = min(told.importance[node] for node in named_nodes)
    assert all(told.importance[node] <= floor for node in others)
    for nodes, said in ((others, told.fidelity.without), (named_nodes, told.fidelity.alone)):
        kept = torch.tensor(sorted(nodes))
        edges, _ = subgraph(kept, graph.edge_index, relabel_nodes=True, num_nodes=told.nodes)
        share = model(graph.x[kept], edges).softmax(1)[0, told.target]
        assert said == pytest.approx(share.item(), abs=1e-5)
    whole = torch.tensor(told.logits).softmax(0)
    assert told.fidelity.p == pytest.approx(whole[told.target].item(), abs=1e-5)
    assert told.target == whole.argmax()


def test_one_atom_has_an_importance_but_nothing_to_take_away():
    model = GraphRegressor(width=8, levels=2, epochs=1).fit(["C", "CC", "CCC", "CO"], [1, 2, 3, 4])
    told = model.explain(["[Na+]", "CCO"], 0, epochs=5)
    assert (told.nodes, told.edges, told.fidelity) == (1, [], None)
    assert len(told.importance) == 1
    assert [view.kept for view in told.levels] == [(0,), (0,)]


def test_estimators_explain_molecules_by_codes():
    smiles = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "CCCC", "OCCO"] * 2
    model = GraphClassifier(width=8, conv="ogb-gcn", epochs=2).fit(smiles, list("abab") * 3)
    told = model.explain(["CCO", "c1ccccc1O"], 1, epochs=20, target=0)
    assert told.nodes == 7
    assert told.target == 0
    assert max(told.importance) > 0
    share = model.predict_proba(["c1ccccc1O"])[0, 0]
    assert told.fidelity.p == pytest.approx(share, abs=1e-5)
    other = model.explain(["c1ccccc1O"], epochs=20, target=1)
    assert other.fidelity.p == pytest.approx(1 - share, abs=1e-5)


def test_regression_is_explained_in_the_units_of_the_target():
    smiles = ["C" * length for length in range(1, 13)]
    model = GraphRegressor("none", conv="gin", width=8, epochs=3, seed=1)
    model.fit(smiles, [1000.0 * length for length in range(1, 13)])
    told = model.explain(["CCCCCC"], epochs=20)
    assert told.fidelity.p == pytest.approx(float(model.predict(["CCCCCC"])[0]), rel=1e-5)
    assert told.logits == (pytest.approx(told.fidelity.p),)
    assert max(told.importance) > min(told.importance) > 0


def test_of_several_tasks_the_most_probable_is_explained_unless_one_is_asked_for():
    x, y = torch.randn(6, 3), torch.tensor([[1.0, 0.0, 1.0]])
    ends = torch.tensor(ring(6)).T
    data = GraphDataset.from_pyg([Data(x, ends, y=y)])
    assert data.schema.task == "binary"
    model = network(data)
    told = explain(model, data, epochs=10)
    shares = torch.tensor(told.logits).sigmoid()
    assert told.target == shares.argmax()
    asked = explain(model, data, epochs=10, target=2)
    assert asked.fidelity.p == pytest.approx(shares[2].item(), abs=1e-5)
    with pytest.raises(ValueError, match=r"target must be 0 to 2, got 3"):
        explain(model, data, target=3)


def test_what_cannot_be_explained_is_said_in_one_line(mutag):
    model = network(mutag)
    with pytest.raises(ValueError, match="there is no graph 188: the graphs are 0 to 187"):
        explain(model, mutag, 188)
    bare = read_graphs(mutag)
    with pytest.raises(ValueError, match="pass task="):
        explain(model, bare)
    assert explain(model, bare, task="classes", importance=False).target in (0, 1)
    with pytest.raises(ValueError, match=r"unknown task 'class'; choose one of 'classes'"):
        explain(model, bare, task="class")


def test_explanation_is_plain_values_that_json_holds(mutag):
    told = explain(network(mutag), mutag, epochs=2)
    again = json.loads(json.dumps(told.to_json()))
    assert set(again) == set(Explanation._fields)
    assert again["levels"][0]["kept"] == list(told.levels[0].kept)
    assert again["fidelity"]["p"] == told.fidelity.p
    json.dumps(told._asdict())


@few
@given(st.lists(one_graph(), min_size=1, max_size=4), st.sampled_from(OPTIONS), st.integers(1, 5))
def test_diversity_counts_what_a_naive_look_counts(parts, options, intervals):
    graphs = [graph for part in parts for graph in part.to_pyg()]
    data = named(GraphDataset.from_pyg(graphs), 2)
    model = network(data, **options)
    found = diversity(model, data, intervals=intervals, batch_size=2)
    assert list(found.covers) == [*SAMPLERS, "random"]
    for index, graph in enumerate(graphs):
        view = explain(model, data, index, importance=False).levels[0]
        score = round_scores(torch.tensor(view.score))
        low, high = score.min(), score.max()
        wide = (high - low) / intervals
        place = [
            min(int((value - low) / wide), intervals - 1) if high > low else 0 for value in score
        ]
        assert found.occupied[index] == len(set(place))
        near = {node: {node} for node in range(len(place))}
        for source, target in graph.edge_index.T.tolist():
            near[source].add(target)
            near[target].add(source)
        own = getattr(model.pools[0], "sampler", "topk")
        for name, kept in ((own, view.kept), ("topk", view.topk)):
            cover = found.covers[name]
            assert cover.intervals[index] == len({place[node] for node in kept})
            reached = set().union(*(near[node] for node in kept))
            assert cover.neighbourhood[index] == pytest.approx(len(reached) / len(place))
        for cover in found.covers.values():
            assert 1 <= cover.intervals[index] <= found.occupied[index]
            assert 0 < cover.neighbourhood[index] <= 1


@pytest.mark.parametrize("pool", ["gtpool", "topkpool"])
def test_nodes_alike_but_for_rounding_are_in_one_interval(pool):
    node = torch.tensor([[0.3, -1.7, 0.11, 2.3]])
    graphs = [
        Data(node.repeat(size, 1), torch.tensor(ring(size)).T, y=torch.tensor([0]))
        for size in range(3, 60)
    ]
    data = named(GraphDataset.from_pyg(graphs), 2)
    assert set(diversity(network(data, pool=pool), data).occupied) == {1}


def test_diversity_is_the_same_for_the_same_seed_and_leaves_the_model_alone(mutag):
    model = network(mutag).train()
    one, two = (diversity(model, mutag, seed=3) for _ in range(2))
    assert one == two
    assert len(one.occupied) == 188
    assert diversity(model, mutag, seed=4).covers["random"] != one.covers["random"]
    assert model.training
    assert not any(part._forward_hooks for part in model.modules())
    with pytest.raises(ValueError, match="pool 'none' drops no nodes"):
        diversity(network(mutag, pool="none"), mutag)
    with pytest.raises(ValueError, match="intervals must be an int of at least 1"):
        diversity(model, mutag, intervals=0)


def test_nodes_are_called_by_element_label_or_number(mutag, tmp_path):
    assert name_nodes(mutag, 0) == [*"CCCCCCCCCCCCCCNOO"]
    assert name_nodes(read_graphs(["C[Se]Cl", "CCO"]), 0) == ["C", "Se", "Cl"]
    lines = [
        {"nodes": 2, "edges": [[0, 1]], "node_labels": [7, 5], "node_features": [[1.5], [2]]},
        {"nodes": 2, "edges": [], "node_labels": [5, 5], "node_features": [[1], [2]]},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps({**line, "label": at}) for at, line in enumerate(lines)))
    assert name_nodes(load(path), 0) == ["7", "5"]
    assert name_nodes(GraphDataset.from_pyg([Data(torch.ones(3, 1), y=torch.tensor([0]))])) == [
        *"012"
    ]


@pytest.fixture(scope="module")
def molecules(tmp_path_factory):
    """A saved model of molecules, and a table with a row that cannot be read."""
    folder = tmp_path_factory.mktemp("molecules")
    smiles = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "CCCC", "OCCO"] * 2
    GraphClassifier(width=8, epochs=1).fit(smiles, ["yes", "no"] * 6).save(folder / "model")
    table = folder / "new.csv"
    table.write_text("smiles\nCCO\nC1CC(\nc1ccccc1\n[Na+]\n")
    return load_bundle(folder / "model"), table


def test_graphs_of_a_table_go_by_their_line(molecules):
    bundle, table = molecules
    found = explain_source(bundle, table, graphs=2, epochs=5, device="cpu")
    assert found.unit == "line"
    assert [(part.number, part.id, part.smiles) for part in found.graphs] == [
        (2, "CCO", "CCO"),
        (4, "c1ccccc1", "c1ccccc1"),
    ]
    assert len(found.diversity.occupied) == 3
    assert found.targets == ("no", "yes")
    one = explain_source(bundle, table, graph=4, target="no", device="cpu")
    assert one.diversity is None
    assert one.graphs[0].explanation.target == 0
    assert one.graphs[0].names == [*"CCCCCC"]
    for options, says in (
        ({"graph": 3}, r"line 3 of .*new\.csv cannot be read: not a valid SMILES"),
        ({"graph": 0}, r"no graph on line 0; .* graph \(--graph\) is a line number, 2 to 5"),
        ({"target": "maybe"}, "target 'maybe'.* no, yes"),
    ):
        with pytest.raises(ValueError, match=says):
            explain_source(bundle, table, device="cpu", **options)


def test_a_mapping_of_ogb_that_is_broken_is_named(molecules, tmp_path):
    bundle, _ = molecules
    data = read_graphs(["CCO", "CC"], molecule_features=("rdkit2d", "morgan"))
    data.save(tmp_path / "mine")
    mapping = tmp_path / "mine" / "mapping" / "mol.csv.gz"
    mapping.parent.mkdir()
    for text in (b"y,smiles\n0,CCO\n0\n", b"y,smiles\n0,\xff\n", b'y,smiles\n0,"C"C\n'):
        mapping.write_bytes(gzip.compress(text))
        with pytest.raises(ValueError, match=r"mol\.csv\.gz"):
            explain_source(bundle, tmp_path / "mine", epochs=1, device="cpu")


def test_all_graphs_of_a_short_table_are_explained_if_more_are_asked_for(molecules):
    bundle, table = molecules
    found = explain_source(bundle, table, graphs=99, epochs=5, device="cpu")
    assert [part.number for part in found.graphs] == [2, 4, 5]


def test_a_set_known_by_name_has_its_classes_and_no_smiles(mutag, tmp_path):
    save_bundle(tmp_path / "model", network(mutag), {"schema": mutag.schema.to_json()})
    found = explain_source(
        load_bundle(tmp_path / "model"), "MUTAG", graphs=2, epochs=5, device="cpu"
    )
    assert [part.number for part in found.graphs] == [0, 94]
    assert {part.smiles for part in found.graphs} == {None}
    assert {part.truth for part in found.graphs} <= set(mutag.schema.targets)
    assert found.sampler == "rwsv"


def test_json_lines_keep_their_ids(tmp_path):
    path = tmp_path / "some.jsonl"
    lines = [
        {"nodes": 3, "edges": [[0, 1], [1, 2]], "undirected": True, "label": at, "id": f"CC{at}O"}
        for at in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    data = load(path)
    bundle = Bundle(network(data), {"schema": data.schema.to_json()})
    (part,) = explain_source(bundle, path, graph=2, device="cpu").graphs
    assert (part.number, part.id, part.truth) == (2, "CC1O", "1")
    assert part.smiles is None  # an id is no molecule, though it may look like one


def test_molecules_of_ogb_are_found_in_its_mapping(tmp_path):
    smiles = ["CCO", "c1ccncc1"]
    read = read_molecules(smiles)
    folder = tmp_path / "ogbg_own"
    tables = {
        "raw/num-node-list": read.sizes[:, None].tolist(),
        "raw/num-edge-list": (read.edge_counts // 2)[:, None].tolist(),
        "raw/node-feat": read.x.tolist(),
        "raw/edge": read.edge_index.T[::2].tolist(),
        "raw/edge-feat": read.edge_attr[::2].tolist(),
        "raw/graph-label": [[0], [1]],
        "mapping/mol": [["toxic", "smiles"], [0, smiles[0]], [1, "CCCCCN"]],
    }
    for name, rows in tables.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = "\n".join(",".join(map(str, row)) for row in rows)
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    data = load(folder)
    bundle = Bundle(network(data), {"schema": data.schema.to_json()})
    found = explain_source(bundle, folder, epochs=5, device="cpu")
    # Of the second the mapping names a molecule with other atoms: it cannot be drawn by that.
    assert [part.smiles for part in found.graphs] == ["CCO", None]
    assert found.task == "binary"
    assert found.graphs[1].names == [*"CCCNCC"]


@pytest.mark.slow
def test_molecules_of_b3db_come_with_their_smiles():
    data = load("B3DB")
    bundle = Bundle(network(data), {"schema": data.schema.to_json()})
    number = 7804  # two SMILES before it cannot be read
    (part,) = explain_source(bundle, "B3DB", graph=number, epochs=5, device="cpu").graphs
    again = read_graphs([part.smiles])
    assert torch.equal(again.x, data.take([number]).x.to(again.x.dtype))


@pytest.mark.parametrize("order", ["index", "score"])
@pytest.mark.parametrize("ratio", [0.5, 0.3, 4])
def test_each_sampler_keeps_what_a_layer_with_it_keeps(ratio, order):
    graph = pack([(13, [*ring(13), (0, 5), (5, 0)])], seed=0)
    torch.manual_seed(0)
    pool = GTPool(CHANNELS, ratio, order=order).double()
    compared = compare_samplers(pool, graph.x, graph.edge_index)
    assert list(compared.kept) == list(SAMPLERS)
    for sampler, kept in compared.kept.items():
        twin = GTPool(CHANNELS, ratio, order=order, sampler=sampler).double()
        twin.load_state_dict(pool.state_dict())
        out = twin(graph.x, graph.edge_index)
        assert kept == out.perm.tolist()
        close(compared.share[kept], out.score.detach())
    assert len({tuple(kept) for kept in compared.kept.values()}) > 1


def test_comparison_shows_the_scores_without_gradients():
    graph = pack([(7, ring(7))], seed=1)
    pool = GTPool(CHANNELS, gate="tanh").double()
    compared = compare_samplers(pool, graph.x, graph.edge_index)
    for shown, scored in zip(compared.scores, pool.scores(graph.x, graph.edge_index), strict=True):
        close(shown, scored.detach())
        assert not shown.requires_grad
    close(compared.share, compared.scores.score.softmax(0))
    highest = compared.scores.score.topk(4).indices.sort().values
    assert compared.kept["topk"] == highest.tolist()


@pytest.mark.parametrize("smiles", ["OCC(N)=O", "Fc1ccccc1C(=O)O"])
def test_atoms_of_an_explanation_are_numbered_as_the_smiles_lists_them(molecules, smiles, tmp_path):
    bundle, _ = molecules
    table = tmp_path / "own.csv"
    table.write_text(f"smiles\n{smiles}\n")
    (part,) = explain_source(bundle, table, epochs=5, device="cpu").graphs
    assert part.names == [letter.upper() for letter in smiles if letter.isalpha()]
    given = read_molecules([smiles], atom_order="given")
    bonds = {tuple(pair) for pair in given.edge_index.T.tolist()}
    assert set(part.explanation.edges) == bonds
    # The same molecule as the network numbers it: one explanation under two names.
    numbers = atom_numbers(smiles, "canonical")
    assert numbers != sorted(numbers)
    own = explain(
        bundle.model,
        read_graphs([smiles], read_schema(bundle.about["schema"], "here").recipe),
        epochs=5,
        task="classes",
    )
    told = part.explanation
    assert told.importance == pytest.approx(
        [own.importance[numbers.index(atom)] for atom in range(len(numbers))]
    )
    assert told.fidelity.nodes == tuple(numbers[node] for node in own.fidelity.nodes)
    for view, plain in zip(told.levels, own.levels, strict=True):
        assert set(view.kept) == {numbers[node] for node in plain.kept}
        score = dict(zip(view.nodes, view.score, strict=True))
        for node, value in zip(plain.nodes, plain.score, strict=True):
            assert score[numbers[node]] == pytest.approx(value)
    by_estimator = GraphClassifier.load(bundle.folder).explain([smiles], epochs=5)
    assert by_estimator.levels == told.levels


@pytest.mark.parametrize("connect", ["induced", "khop:2", "closest"])
def test_edges_of_a_level_are_those_that_the_next_step_gets(mutag, connect):
    model = network(mutag, connect=connect)
    told = explain(model, mutag, 3, importance=False)
    for view, after in zip(told.levels, told.levels[1:], strict=False):
        pairs = {frozenset(edge) for edge in after.edges if edge[0] != edge[1]}
        joined = set().union(*pairs) if pairs else set()
        assert view.pairs == len(pairs)
        assert view.isolated == pytest.approx(1 - len(joined) / len(view.kept))


def test_connectivity_adds_up_what_explanations_say(mutag):
    model = network(mutag, connect="closest")
    data = GraphDataset.from_pyg(mutag.to_pyg()[:20], mutag.schema)
    every = connectivity(model, data, batch_size=8)
    views = [explain(model, data, index, importance=False).levels for index in range(len(data))]
    for step, level in enumerate(every[1:]):
        assert level.pairs == sum(levels[step].pairs for levels in views)
        assert level.nodes == sum(len(levels[step].kept) for levels in views)
        lone = sum(levels[step].isolated * len(levels[step].kept) for levels in views)
        assert level.lone == pytest.approx(lone)
