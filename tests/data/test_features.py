import pytest
import torch

from gtpool.data.features import FEATURES, MAX_DEGREE, RawGraphs, featurize, learn_recipe
from gtpool.data.formats.tu import read_tu
from gtpool.data.schema import Recipe, Schema


def raw(name="mine", *, labels=False, attributes=0, **other) -> RawGraphs:
    """A star of four nodes, its centre first, and a lone node."""
    return RawGraphs(
        torch.tensor([4, 1]),
        torch.tensor([6, 0]),
        torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]]),
        torch.tensor([0, 1]),
        name,
        "classes",
        ("star", "lone"),
        node_labels=torch.tensor([6, 1, 1, 8, 6]) if labels else None,
        node_attributes=torch.arange(5.0 * attributes).view(5, -1) if attributes else None,
        **other,
    )


LABELS = [[0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
DEGREES = [[0, 0, 0, 1], [0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
ATTRIBUTES = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
BOTH = [a + b for a, b in zip(ATTRIBUTES, LABELS, strict=True)]
SCALAR_DEGREE = [[3], [1], [1], [1], [0]]
ONES = [[1]] * 5


@pytest.mark.parametrize(
    ("kind", "labels", "attributes", "expected"),
    [
        ("gmt", True, 0, LABELS),
        ("gmt", False, 2, ATTRIBUTES),
        ("gmt", True, 2, BOTH),
        ("gmt", False, 0, DEGREES),
        ("fair", True, 0, LABELS),
        ("fair", False, 2, ATTRIBUTES),
        ("fair", True, 2, LABELS),
        ("fair", False, 0, SCALAR_DEGREE),
        *[("degree", labels, attributes, DEGREES) for labels in (0, 1) for attributes in (0, 2)],
        *[("constant", labels, attributes, ONES) for labels in (0, 1) for attributes in (0, 2)],
    ],
)
def test_the_recipes(kind, labels, attributes, expected):
    source = raw(labels=labels, attributes=attributes)
    data = featurize(source, learn_recipe(source, kind))
    assert data.x.tolist() == expected
    assert data.x.dtype == torch.float32
    assert data.y.tolist() == [0, 1]
    assert (data.schema.name, data.schema.targets) == ("mine", ("star", "lone"))


@pytest.mark.parametrize(
    ("name", "kind", "labels", "attributes", "columns", "continuous"),
    [
        ("ENZYMES", "gmt", True, 18, 18 + 3, 18),
        ("ENZYMES", "fair", True, 18, 18 + 3, 18),
        ("PROTEINS", "gmt", True, 1, 1 + 3, 1),
        ("PROTEINS", "fair", True, 1, 3, 0),
        ("IMDB-BINARY", "gmt", False, 0, 4, 0),
        ("IMDB-BINARY", "fair", False, 0, 1, 1),
        ("Synthie", "gmt", False, 15, 15, 15),
    ],
)
def test_the_rules_of_the_protocols(name, kind, labels, attributes, columns, continuous):
    source = raw(name, labels=labels, attributes=attributes)
    data = featurize(source, learn_recipe(source, kind))
    assert data.num_features == columns
    assert data.schema.recipe.attributes == continuous


def test_an_unknown_kind_lists_the_choices():
    with pytest.raises(ValueError, match="unknown features 'gtm'; choose one of gmt, fair, degree"):
        learn_recipe(raw(), "gtm")


@pytest.mark.parametrize("kind", FEATURES)
def test_the_same_recipe_gives_the_same_features_after_json(kind):
    source = raw(labels=True, attributes=2)
    data = featurize(source, learn_recipe(source, kind)).standardized([0])
    schema = Schema.from_json(data.schema.to_json())
    assert schema == data.schema
    assert torch.equal(featurize(source, schema.recipe).x, data.x)


def test_new_data_is_scaled_by_what_was_learned():
    source = raw(attributes=2)
    recipe = featurize(source, learn_recipe(source)).standardized([0]).schema.recipe
    new = source._replace(node_attributes=torch.full((5, 2), 3.0))
    assert featurize(new, recipe).x[0].tolist() == pytest.approx([0, -1 / 5**0.5])


def test_labels_that_were_not_seen_are_refused():
    source = raw(labels=True, edge_labels=torch.tensor([1, 2, 3, 1, 2, 3]))
    recipe = learn_recipe(source)
    for strange in (0, 7, 99):
        new = source._replace(node_labels=torch.tensor([6, 1, strange, 8, 6]))
        with pytest.raises(ValueError, match=f"node label {strange} "):
            featurize(new, recipe)
    with pytest.raises(ValueError, match=r"edge label 4 .* 1, 2, 3"):
        featurize(source._replace(edge_labels=torch.tensor([1, 2, 3, 4, 2, 3])), recipe)
    fewer = featurize(source._replace(node_labels=torch.tensor([1, 1, 1, 1, 1])), recipe)
    assert fewer.num_features == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"node_labels": None}, "node labels"),
        ({"edge_labels": None}, "edge labels"),
        ({"node_attributes": None}, "mine has 0 node attributes, .* trained on 2"),
        ({"node_attributes": torch.ones(5, 3)}, "mine has 3 node attributes, .* trained on 2"),
        ({"edge_attributes": None}, "mine has 0 edge attributes, .* trained on 1"),
        ({"edge_attributes": torch.ones(6, 2)}, "mine has 2 edge attributes, .* trained on 1"),
    ],
)
def test_what_a_model_needs_must_be_there(change, said):
    source = raw(
        labels=True,
        attributes=2,
        edge_labels=torch.tensor([1, 2, 3, 1, 2, 3]),
        edge_attributes=torch.ones(6, 1),
    )
    with pytest.raises(ValueError, match=said):
        featurize(source._replace(**change), learn_recipe(source))


def test_a_fair_recipe_of_attributes_does_not_fall_back_on_the_degree():
    source = raw(attributes=1)
    with pytest.raises(ValueError, match=r"mine has 0 node attributes, .* trained on 1"):
        featurize(raw(), learn_recipe(source, "fair"))
    assert featurize(source, learn_recipe(raw(), "fair")).x.tolist() == SCALAR_DEGREE


def test_edges_have_attributes_and_one_hot_labels():
    source = raw(
        edge_labels=torch.tensor([5, 2, 5, 5, 2, 5]),
        edge_attributes=torch.arange(6.0)[:, None],
        edge_weighted=True,
    )
    data = featurize(source, learn_recipe(source))
    assert data.edge_attr.tolist() == [
        [0, 0, 1],
        [1, 1, 0],
        [2, 0, 1],
        [3, 0, 1],
        [4, 1, 0],
        [5, 0, 1],
    ]
    assert data.schema.recipe.edge_weighted
    assert featurize(raw(), learn_recipe(raw())).edge_attr is None


def test_degrees_above_those_seen_share_the_last_column():
    source = raw()
    recipe = learn_recipe(source, "degree")
    star = source._replace(
        sizes=torch.tensor([7]),
        edge_counts=torch.tensor([6]),
        edge_index=torch.tensor([[0] * 6, [1, 2, 3, 4, 5, 6]]),
        y=torch.tensor([0]),
    )
    assert featurize(star, recipe).x[0].tolist() == [0, 0, 0, 1]


def star(leaves: int, **other) -> RawGraphs:
    """One graph: a centre with so many leaves."""
    ends = torch.arange(1, leaves + 1)
    edges = torch.stack([torch.zeros_like(ends), ends])
    return RawGraphs(
        torch.tensor([leaves + 1]),
        torch.tensor([2 * leaves]),
        torch.cat([edges, edges.flip(0)], 1),
        torch.tensor([0]),
        "star",
        "classes",
        ("star",),
        **other,
    )


def test_degrees_above_the_cap_share_a_column():
    source = star(20_000)
    recipe = learn_recipe(source)
    assert recipe.max_degree == MAX_DEGREE
    data = featurize(source, recipe)
    assert data.x.shape == (20_001, MAX_DEGREE + 1)
    assert data.x[0].nonzero().tolist() == [[MAX_DEGREE]]
    assert data.x[1:, 1].all()


@pytest.mark.parametrize("part", ["node_labels", "edge_labels"])
def test_features_that_do_not_fit_into_memory_are_refused_with_their_size(part, monkeypatch):
    monkeypatch.setattr("gtpool.ops.memory.free_memory", lambda _: 10**9)
    count = 90_000 if part == "node_labels" else 2 * 89_999
    source = star(89_999, **{part: torch.arange(count)})
    with pytest.raises(ValueError, match=r"star: .* 32\.4 GB of memory"):
        featurize(source, learn_recipe(source, "constant" if part == "edge_labels" else "gmt"))


def test_more_nodes_than_fit_into_memory_are_refused():
    source = star(1)._replace(sizes=torch.tensor([10**15]))
    for kind in FEATURES:
        with pytest.raises(ValueError, match="1,000,000,000,000,000 nodes"):
            featurize(source, learn_recipe(source, kind))


@pytest.mark.parametrize(
    ("name", "attributes", "labels", "max_degree", "edge_labels"),
    [
        ("MUTAG", 0, 7, None, 4),
        ("ENZYMES", 18, 3, None, 0),
        ("PROTEINS", 1, 3, None, 0),
        ("PTC_MR", 0, 18, None, 4),
        ("Synthie", 15, 0, None, 0),
        ("IMDB-BINARY", 0, 0, 135, 0),
        ("IMDB-MULTI", 0, 0, 88, 0),
    ],
)
def test_the_recipes_of_the_public_sets_stay(
    data_dir, name, attributes, labels, max_degree, edge_labels
):
    recipe = learn_recipe(read_tu(data_dir / "TU" / name / "raw", name))
    assert recipe == Recipe(
        "degree" if max_degree else "gmt",
        labels=tuple(range(recipe.labels[0], recipe.labels[0] + labels)) if labels else (),
        attributes=attributes,
        max_degree=max_degree,
        edge_labels=tuple(range(edge_labels)),
    )
