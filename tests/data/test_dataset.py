import ctypes
import json
import mmap
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from gtpool.data import dataset
from gtpool.data.coarsening import with_chain
from gtpool.data.dataset import GraphDataset, standardize_columns, to_smallest_int
from gtpool.data.schema import Recipe, Schema
from gtpool.data.synthetic import low_scores_matter
from gtpool.pool import KINDS, POOLS

PARTS = ("x", "edge_index", "edge_attr", "sizes", "edge_counts", "y")
RING = torch.tensor([[0, 1, 2], [1, 2, 0]])


@st.composite
def graph_lists(draw, codes=None):
    """PyG graphs of one kind: floats or codes, edge features or none, classes or tasks."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    whole, tasks = draw(st.booleans()) if codes is None else codes, draw(st.sampled_from([0, 1, 3]))
    edge_width = draw(st.sampled_from([None, 1, 2]))

    def values(rows, columns):
        if whole:
            return torch.randint(-3, 300, (rows, columns), generator=generator)
        return torch.randn(rows, columns, generator=generator)

    graphs = []
    for nodes in draw(st.lists(st.integers(1, 7), min_size=1, max_size=6)):
        edges = draw(st.integers(0, 9))
        graph = Data(
            x=values(nodes, 2),
            edge_index=torch.randint(nodes, (2, edges), generator=generator),
            y=torch.randn(1, tasks, generator=generator) if tasks else torch.tensor([nodes % 3]),
        )
        if edge_width:
            graph.edge_attr = values(edges, edge_width)
        graphs.append(graph)
    return graphs


def same(one: GraphDataset, two: GraphDataset) -> bool:
    """Whether two datasets are alike bit for bit, dtypes and all."""
    for name in PARTS:
        mine, other = getattr(one, name), getattr(two, name)
        if (mine is None) != (other is None):
            return False
        if mine is not None and (mine.dtype != other.dtype or mine.shape != other.shape):
            return False
        if mine is not None and not torch.equal(mine.nan_to_num(-9), other.nan_to_num(-9)):
            return False
    return one.schema == two.schema


@given(graph_lists(), st.data())
@settings(deadline=None)
def test_take_gives_what_pyg_gives(graphs, data):
    chosen = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=8))
    ours = GraphDataset.from_pyg(graphs).take(chosen)
    theirs = Batch.from_data_list([graphs[number] for number in chosen])
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.edge_index, theirs.edge_index)
    assert torch.equal(ours.batch, theirs.batch)
    assert torch.equal(ours.levels[0].ptr, theirs.ptr)
    assert torch.equal(ours.y, theirs.y)
    assert ours.num_graphs == theirs.num_graphs
    assert (ours.edge_attr is None) == ("edge_attr" not in theirs)
    if ours.edge_attr is not None:
        assert torch.equal(ours.edge_attr, theirs.edge_attr)
        assert ours.edge_attr.dtype == theirs.edge_attr.dtype
    assert ours.x.dtype == theirs.x.dtype


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind == "dropping"])
@given(graph_lists(codes=False), st.sampled_from([0.3, 0.5, 0.8, 1.0, 2]))
@settings(deadline=None, max_examples=15)
def test_poolers_give_the_sizes_that_were_planned(name, graphs, ratio):
    pool = POOLS[name](2, ratio)
    batch = GraphDataset.from_pyg(graphs).take(range(len(graphs)), [ratio] * 3)
    assert len(batch.levels) == 4
    x, edge_index, of = batch.x, batch.edge_index, batch.batch
    for level in batch.levels[1:]:
        pooled = pool(x, edge_index, None, of)
        assert torch.equal(pooled.batch, level.batch)
        assert torch.equal(pooled.batch.bincount(), level.sizes)
        assert level.ptr.tolist() == [0, *level.sizes.cumsum(0).tolist()]
        x, edge_index, of = pooled.x, pooled.edge_index, pooled.batch


@pytest.mark.parametrize("indices", [[], [[0]], [0.0], [True, False], torch.tensor(1)])
def test_take_needs_a_list_of_numbers(indices):
    with pytest.raises(ValueError, match="list of integers"):
        low_scores_matter(2).take(indices)


@pytest.mark.parametrize("wrong", [-1, 2])
def test_take_refuses_graphs_that_are_not_there(wrong):
    data = continuous([[1.0], [2.0]], attributes=1)
    for ask in (data.take, data.standardized):
        with pytest.raises(ValueError, match=f"there is no graph {wrong}: the graphs are 0 to 1"):
            ask([0, wrong])


def test_a_batch_moves_with_its_levels_and_keeps_sizes_on_the_host():
    batch = low_scores_matter(4).take([0, 1], [0.5]).to("meta")
    assert {batch.x.device.type, batch.edge_index.device.type, batch.y.device.type} == {"meta"}
    assert {level.batch.device.type for level in batch.levels} == {"meta"}
    assert {level.sizes.device.type for level in batch.levels} == {"cpu"}
    chained = with_chain(low_scores_matter(4), 2).take([0, 1]).to("meta").chain
    assert {part.device.type for step in chained for part in step[:3]} == {"meta"}
    assert {step.level.batch.device.type for step in chained} == {"meta"}
    assert {step.level.sizes.device.type for step in chained} == {"cpu"}


def test_the_chain_stays_when_features_change_and_fits_its_graphs():
    data = with_chain(continuous([[1.0, 3.0, 2.0], [5.0, 7.0]], attributes=1), 2)
    assert data.standardized([0]).chain == data.to("cpu").standardized([0]).chain == data.chain
    with pytest.raises(ValueError, match="the chain"):
        replace(continuous([[1.0]], attributes=1), chain=data.chain)


def test_the_chain_is_not_saved(tmp_path):
    with_chain(low_scores_matter(4), 2).save(tmp_path / "set")
    assert GraphDataset.load(tmp_path / "set").chain == ()


@pytest.mark.gpu
def test_take_gives_the_same_on_a_gpu():
    data = with_chain(low_scores_matter(20), 2)
    here, there = (one.take([7, 3, 3, 19], [0.5, 0.5]) for one in (data, data.to("cuda")))
    assert there.x.is_cuda
    for name in ("x", "edge_index", "y", "batch"):
        assert torch.equal(getattr(there, name).cpu(), getattr(here, name))
    for one, two in zip(there.levels, here.levels, strict=True):
        assert torch.equal(one.batch.cpu(), two.batch)
    for one, two in zip(there.chain, here.chain, strict=True):
        assert one.cluster.is_cuda
        for mine, other in zip(one.to("cpu")[:3], two[:3], strict=True):
            assert torch.equal(mine, other)


@given(graph_lists())
@settings(deadline=None)
def test_pyg_and_back_loses_nothing(graphs):
    data = GraphDataset.from_pyg(graphs)
    again = data.to_pyg()
    for one, two in zip(graphs, again, strict=True):
        assert sorted(one.keys()) == sorted(two.keys())
        for key in one.keys():  # noqa: SIM118
            assert torch.equal(one[key], two[key])
            assert one[key].dtype == two[key].dtype
    assert same(GraphDataset.from_pyg(again, data.schema), data)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.bool])
def test_the_dtype_of_features_is_kept_or_int64(dtype):
    x = torch.tensor([[0], [1], [1]]).to(dtype)
    data = GraphDataset.from_pyg([Data(x, RING, y=torch.tensor([0]))])
    expected = dtype if dtype.is_floating_point else torch.int64
    assert data.take([0]).x.dtype == data.to_pyg()[0].x.dtype == expected
    assert data.take([0]).x.tolist() == [[0], [1], [1]]


def test_vectors_become_one_column_and_missing_edges_none():
    data = GraphDataset.from_pyg(
        [
            Data(torch.ones(3), RING, torch.tensor([1.0, 2.0, 3.0]), y=1),
            Data(torch.ones(2), None, torch.empty(0), y=0),
        ]
    )
    assert data.x.shape == (5, 1)
    assert data.edge_attr.tolist() == [[1], [2], [3]]
    assert data.edge_counts.tolist() == [3, 0]
    assert data.y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("y", "task", "targets"),
    [
        ([torch.tensor([2]), torch.tensor([0])], "classes", ("0", "1", "2")),
        ([torch.tensor([[0.0, torch.nan]]), torch.tensor([[1.0, 0]])], "binary", 2),
        ([torch.tensor([[0, 1]]), torch.tensor([[1, 1]])], "binary", 2),
        ([torch.tensor([0.5]), torch.tensor([1.0])], "regression", 1),
        ([torch.tensor([0.5]).double(), torch.tensor([1e-9]).double()], "regression", 1),
    ],
)
def test_the_task_follows_from_y(y, task, targets):
    data = GraphDataset.from_pyg([Data(torch.ones(3, 1), RING, y=one) for one in y])
    assert data.schema.task == task
    expected = targets if task == "classes" else tuple(f"task {i + 1}" for i in range(targets))
    assert data.schema.targets == expected
    taken = torch.cat([one.view(1, -1) for one in y]).to(data.y.dtype).view(data.y.shape)
    assert torch.equal(data.y.nan_to_num(-9), taken.nan_to_num(-9))


def test_no_edges_may_have_any_dtype():
    lone = Data(torch.ones(1, 1), torch.empty(2, 0), y=torch.tensor([0]))
    ring = Data(torch.ones(3, 1), RING, y=torch.tensor([1]))
    data = GraphDataset.from_pyg([lone, ring])
    assert data.edge_index.dtype == torch.int32
    assert torch.equal(data.to_pyg()[1].edge_index, RING)


@pytest.mark.parametrize("checked", [1, 2, 5, 1 << 20])
def test_graphs_that_do_not_fit_are_named(checked, monkeypatch):
    monkeypatch.setattr(dataset, "_CHECKED", checked)  # at once
    ring = Data(torch.ones(3, 1), RING, torch.ones(3, 2), torch.tensor([0]))
    cases = [
        (Data(torch.ones(3, 1), RING, y=torch.tensor([0])), "graph 0 has 2 columns.*, 1 none"),
        (Data(torch.ones(3, 2), RING, ring.edge_attr, ring.y), "alike x: graph 0 has 1 columns"),
        (Data(torch.ones(3, 1).int(), RING, ring.edge_attr, ring.y), "1 1 columns of torch.int32"),
        (Data(torch.ones(3, 1), RING, ring.edge_attr, torch.tensor([0.5])), "alike y"),
        (Data(torch.ones(3, 1), RING, ring.edge_attr), "graph 1 lacks y"),
        (Data(None, RING, ring.edge_attr, ring.y, num_nodes=3), "graph 1 lacks x"),
        (Data(ring.x, RING, ring.edge_attr, ring.y, pos=ring.x), "graph 1 has pos too"),
        (
            Data(ring.x, RING + 1, ring.edge_attr, ring.y),
            r"graph 1 .* 0 to 2, but an edge \[2, 3\]",
        ),
        (Data(ring.x, RING - 1, ring.edge_attr, ring.y), r"graph 1 .* an edge \[-1, 0\]"),
        (Data(ring.x, RING + 2**32, ring.edge_attr, ring.y), "graph 1 .* an edge .*4294967296"),
        (Data(ring.x, RING / 2, ring.edge_attr, ring.y), "graph 1: edge_index .*float"),
        (Data(ring.x, RING.T, ring.edge_attr, ring.y), "graph 1: edge_index .* shape"),
        (Data(ring.x / 0, RING, ring.edge_attr, ring.y), "graph 1 of graphs has features that"),
        (Data(ring.x, RING, ring.edge_attr / 0, ring.y), "graph 1 of graphs has features that"),
        (Data(ring.x, RING, ring.edge_attr, ring.y - 1), "graph 1 of graphs has class -1"),
        (Data(ring.x[:0], RING[:, :0], ring.edge_attr[:0], ring.y), "graph 1 .* has no nodes"),
    ]
    for graph, said in cases:
        with pytest.raises(ValueError, match=said):
            GraphDataset.from_pyg([ring, graph])
    with pytest.raises(ValueError, match="there are no graphs"):
        GraphDataset.from_pyg([])


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("x", torch.ones(4, 1), "x has 4 rows, expected 6"),
        ("edge_index", torch.zeros(2, 5, dtype=torch.int), "edge_index has 5 rows, expected 6"),
        ("edge_attr", torch.ones(5, 1), "edge_attr has 5 rows, expected 6"),
        ("edge_counts", torch.tensor([6]), "edge_counts has 1 rows, expected 2"),
        ("y", torch.tensor([0]), "y has 1 rows, expected 2"),
        ("y", torch.tensor([0, 2]), "graph 1 of graphs has class 2, but the classes are 0 to 0"),
        ("sizes", torch.tensor([6, 0]), "graph 1 of graphs has no nodes"),
        ("sizes", torch.tensor([], dtype=torch.long), "graphs has no graphs"),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(part, value, said):
    ring = Data(torch.ones(3, 1), RING, y=torch.tensor([0]))
    with pytest.raises(ValueError, match=said):
        replace(GraphDataset.from_pyg([ring, ring]), **{part: value})


@pytest.mark.parametrize("value", [1e39, torch.inf])
def test_a_target_beyond_float32_is_refused(value):
    graphs = [
        Data(torch.ones(3, 1), RING, y=torch.tensor([y], dtype=torch.double)) for y in (0.5, value)
    ]
    with pytest.raises(ValueError, match=r"graph 1 of graphs has the target .* float32"):
        GraphDataset.from_pyg(graphs)


def test_tasks_that_y_has_no_column_for_are_refused():
    schema = Schema("mine", "binary", ("a", "b"), Recipe("given"))
    with pytest.raises(ValueError, match=r"mine names 2 tasks, but y is of shape \[1, 1\]"):
        GraphDataset.from_pyg([Data(torch.ones(3, 1), RING, y=torch.tensor([0.0]))], schema)


@given(st.lists(st.integers(-(2**40), 2**40), max_size=5), st.sampled_from([1, 2**24, 2**40]))
def test_narrow_stores_all_values_in_little_room(values, divisor):
    codes = torch.tensor([value // divisor for value in values], dtype=torch.long)
    stored = to_smallest_int(codes)
    assert torch.equal(stored.long(), codes)
    if codes.numel() and int(codes.min()) >= 0 and int(codes.max()) < 256:
        assert stored.dtype == torch.uint8


@given(graph_lists())
@settings(deadline=None, max_examples=30)
def test_saved_and_loaded_is_the_same_bit_for_bit(tmp_path_factory, graphs):
    data = GraphDataset.from_pyg(graphs)
    folder = tmp_path_factory.mktemp("saved") / "deep" / "set"
    data.save(folder)
    assert same(GraphDataset.load(folder), data)
    assert [path.name for path in folder.parent.iterdir()] == ["set"]


def test_the_schema_survives_whole(tmp_path):
    data = low_scores_matter(4)
    recipe = Recipe(
        "gmt",
        labels=(3, 5),
        attributes=1,
        max_degree=4,
        edge_labels=(1, 2),
        edge_attributes=2,
        edge_weighted=True,
        mean=(0.1,),
        std=(1 / 3,),
    )
    data = replace(data, schema=Schema("Erdős", "classes", ("yes", "no"), recipe))
    data.save(tmp_path / "set")
    assert GraphDataset.load(tmp_path / "set").schema == data.schema


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux' list of mappings")
def test_loading_maps_the_file_into_memory(tmp_path):
    low_scores_matter(100).save(tmp_path / "set")
    loaded = GraphDataset.load(tmp_path / "set")
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if "graphs.safetensors" in line]
    address = loaded.x.data_ptr()
    assert any(int(low, 16) <= address < int(high, 16) for low, high in spans)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' madvise")
def test_prefetching_advises_linux_about_the_graphs_of_a_batch_alone(tmp_path, monkeypatch):
    data = low_scores_matter(200)
    data.prefetch([0])  # nothing to do
    data.save(tmp_path / "set")
    libc, advised = ctypes.CDLL(None, use_errno=True), []

    class Noting:
        def madvise(self, start, size, advice):
            answer = libc.madvise(start, size, advice)
            advised.append((start.value, start.value + size.value, advice, answer))

    monkeypatch.setattr(dataset, "_libc", Noting)
    loaded = GraphDataset.load(tmp_path / "set")
    assert {advice for *_, advice, _ in advised} == {mmap.MADV_RANDOM}
    advised.clear()
    loaded.prefetch(torch.tensor([150, 3]))
    assert {advice for *_, advice, _ in advised} == {mmap.MADV_WILLNEED}
    assert not any(answer for *_, answer in advised)
    for graph in (150, 3):
        rows = loaded.x[loaded.node_ptr[graph] : loaded.node_ptr[graph + 1]]
        low, high = rows.data_ptr(), rows.data_ptr() + rows.nbytes
        assert any(start <= low and end == high for start, end, *_ in advised)
    assert sum(end - start for start, end, *_ in advised) < 8 * (mmap.PAGESIZE + 4096)


def test_files_that_are_damaged_or_foreign_are_refused(tmp_path):
    data, folder = low_scores_matter(4), tmp_path / "set"
    tensors, schema = folder / "graphs.safetensors", folder / "schema.json"
    data.save(folder)
    sound = {path: path.read_bytes() for path in (tensors, schema)}
    told = json.loads(sound[schema])
    cases = {
        tensors: [b"", sound[tensors][:-1], sound[tensors][:9], b"PK" + sound[tensors]],
        schema: [
            b"",
            sound[schema][:-2],
            b"[]",
            b"\xff\xfe",
            json.dumps({**told, "format": 99}).encode(),
            json.dumps({"format": 1}).encode(),
            json.dumps({**told, "colour": 1}).encode(),
            json.dumps({**told, "recipe": 1}).encode(),
            json.dumps({**told, "targets": ["one"]}).encode(),
        ],
    }
    for path, contents in cases.items():
        for content in contents:
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"delete it"):
                GraphDataset.load(folder)
        path.write_bytes(sound[path])
    assert same(GraphDataset.load(folder), data)
    tensors.unlink()
    with pytest.raises(OSError, match=r"graphs.safetensors"):
        GraphDataset.load(folder)


def test_saving_again_replaces_and_leaves_nothing_beside(tmp_path):
    one, two = low_scores_matter(4), low_scores_matter(6)
    one.save(tmp_path / "set")
    mapped = GraphDataset.load(tmp_path / "set")
    two.save(tmp_path / "set")
    assert same(GraphDataset.load(tmp_path / "set"), two)
    assert same(mapped, one)  # the file that is mapped stays as it was
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_folder_with_other_things_in_it_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        low_scores_matter(2).save(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_failed_save_leaves_what_was_there(tmp_path):
    data = low_scores_matter(4)
    data.save(tmp_path / "set")
    broken = replace(data, schema=replace(data.schema, name=object()))  # JSON cannot hold it
    with pytest.raises(TypeError, match="not JSON serializable"):
        broken.save(tmp_path / "set")
    assert same(GraphDataset.load(tmp_path / "set"), data)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_save_that_runs_out_of_room_leaves_what_was_there(tmp_path):
    resource = pytest.importorskip("resource")
    data, larger = low_scores_matter(4), low_scores_matter(400)
    data.save(tmp_path / "set")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (mmap.PAGESIZE, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot be written: .*File too large"):
            larger.save(tmp_path / "set")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert same(GraphDataset.load(tmp_path / "set"), data)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def continuous(values: list[list[float]], attributes: int) -> GraphDataset:
    """Make one graph of each row of values: one node a value, the same in every column."""
    graphs = [
        Data(torch.tensor(row)[:, None].repeat(1, 3), RING[:, :0], y=torch.tensor([number % 2]))
        for number, row in enumerate(values)
    ]
    data = GraphDataset.from_pyg(graphs)
    return replace(data, schema=replace(data.schema, recipe=Recipe("given", attributes=attributes)))


def test_standardizing_looks_at_the_training_part_alone():
    data = continuous([[1.0, 3.0], [5.0], [100.0]], attributes=2)
    scaled = data.standardized([0, 1])
    assert scaled.schema.recipe.mean == (3.0, 3.0)
    assert scaled.schema.recipe.std == pytest.approx([(8 / 3) ** 0.5] * 2)
    train = scaled.take([0, 1]).x[:, :2].double()
    assert train.mean().abs() < 1e-6
    assert train.std(0, correction=0).tolist() == pytest.approx([1, 1])
    assert scaled.x[3, 0] == pytest.approx(97 / (8 / 3) ** 0.5)
    assert torch.equal(scaled.x[:, 2], data.x[:, 2])  # no attribute: left as it is
    elsewhere = continuous([[1.0, 3.0], [5.0], [-7.0]], attributes=2).standardized([0, 1])
    assert elsewhere.schema.recipe == scaled.schema.recipe
    assert torch.equal(standardize_columns(data.x, scaled.schema.recipe), scaled.x)


def test_standardizing_happens_once_and_only_to_attributes():
    data = continuous([[1.0, 3.0], [5.0]], attributes=3)
    scaled = data.standardized([0])
    assert scaled.standardized([1]) is scaled
    plain = low_scores_matter(2)
    assert plain.standardized([0]) is plain


@given(st.floats(-1e6, 1e6, width=32), st.integers(1, 40))
@settings(deadline=None)
def test_a_constant_column_stays_constant_and_small(value, nodes):
    data = continuous([[value] * nodes, [value + 1.0]], attributes=3)
    scaled = data.standardized([0])
    assert scaled.schema.recipe.std == (1.0, 1.0, 1.0)
    assert scaled.x.abs().max() <= 2
