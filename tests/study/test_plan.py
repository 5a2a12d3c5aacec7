import json
from inspect import signature

import pytest

from gtpool.model import method_name
from gtpool.pool import POOLS
from gtpool.spec import OGB, TU, DataSpec, ModelSpec, RunSpec
from gtpool.study.plan import make_plan, read_settings


def options(**parts):
    return {"": {}, "data": {}, "split": {}, "model": {}, "train": {}} | parts


def test_without_options_it_is_the_protocol():
    plan = make_plan({}, options(data={"source": "PROTEINS"}))
    assert plan.run == RunSpec(data=DataSpec(source="PROTEINS"), train=TU)
    assert (plan.seeds, plan.run.split.folds, plan.run.seed) == (1, 10, 42)
    assert make_plan({}, options(data={"source": "ogbg-molbbbp"})).run.train == OGB
    assert make_plan({}, options(data={"source": "ogbg-molhiv"})).run.train.batch_size == 512
    assert make_plan({}, options(data={"source": "my.csv"})).run.train == TU


def test_options_go_before_the_file_and_the_file_before_the_protocol():
    settings = {
        "data": {"source": "MUTAG"},
        "train": {"epochs": 7, "lr": 0.1},
        "model": {"width": 64},
        "seeds": 3,
    }
    plan = make_plan(settings, options(train={"epochs": 9, "lr": None}, data={"source": None}))
    assert (plan.run.train.epochs, plan.run.train.lr, plan.run.train.clip) == (9, 0.1, TU.clip)
    assert (plan.run.model.width, plan.seeds) == (64, 3)
    assert make_plan(settings, options(**{"": {"seeds": 1}})).seeds == 1


def test_a_short_training_warms_up_for_a_tenth_of_its_epochs_as_the_long_one_does():
    def warmup(settings, epochs):
        train = {"data": {"source": "MUTAG"}, "train": settings}
        return make_plan(train, options(train={"epochs": epochs})).run.train.warmup

    assert TU.warmup == warmup({}, None) == warmup({}, TU.epochs) == 50
    assert (warmup({}, 100), warmup({"epochs": 40}, None), warmup({"epochs": 40}, 90)) == (10, 4, 9)
    assert warmup({"warmup": 3}, 100) == 3


def test_a_method_is_named_where_a_pooler_is():
    named = {"pool": "gin", "readout": "max"}
    plan = make_plan({}, options(data={"source": "MUTAG"}, model=named))
    model = plan.run.model
    assert (model.pool, model.conv, model.readout, model.levels) == ("none", "gin", "max", 1)
    assert make_plan({"data": {"source": "MUTAG"}, "model": named}, options()) == plan


def test_another_pooler_does_not_inherit_the_options_of_the_files():
    settings = {"data": {"source": "MUTAG"}, "model": {"pool": "gtpool-topk", "width": 64}}
    assert make_plan(settings, options()).run.model.pool_options == {"sampler": "topk"}
    other = make_plan(settings, options(model={"pool": "gtpool"})).run.model
    assert (other.pool_options, other.width) == ({}, 64)


@pytest.mark.parametrize("name", ["gcn", "gin", "gtpool", "gtpool-v", "gtpool-topk"])
def test_methods_are_recognised(name):
    plan = make_plan({}, options(data={"source": "MUTAG"}, model={"pool": name, "width": 8}))
    assert plan.method == name


def test_networks_without_a_name_are_called_by_what_they_pool_or_convolve_with():
    assert method_name(ModelSpec(pool="none", conv="gat").to_json()) == "gat"
    assert method_name({"pool": "else", "conv": "gcn"}) == "else"


def test_the_files_name_is_the_datas():
    assert make_plan({}, options(data={"source": "some/My.Set.csv.gz"})).data == "My"


def test_the_recipe_best_orders_equal_scores_by_structure_wherever_a_pooler_can():
    for pool, make in POOLS.items():
        plan = make_plan({}, options(data={"source": "MUTAG"}, model={"pool": pool}), "best")
        order = plan.run.model.pool_options.get("order")
        assert order == ("structure" if "order" in signature(make).parameters else None), pool
    sampled = options(data={"source": "my.csv"}, model={"pool": "maxcutpool-rws"})
    assert make_plan({}, sampled, "best").run.model.pool_options == {
        "sampler": "rws",
        "order": "structure",
    }
    assert make_plan({}, sampled, "paper").run.model.pool_options == {
        "sampler": "rws",
        "order": "score",
    }


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_files_are_read_and_what_was_planned_is_read_back(tmp_path, kind):
    path = tmp_path / f"settings.{kind}"
    if kind == "toml":
        path.write_text('seeds = 2\n[data]\nsource = "MUTAG"\n[model]\nratio = 1.0\n')
    else:
        path.write_text('{"seeds": 2, "data": {"source": "MUTAG"}, "model": {"ratio": 1.0}}')
    plan = make_plan(read_settings(path), options())
    assert plan.seeds == 2
    assert type(plan.run.model.ratio) is float  # 1 would keep one node, 1.0 keeps all
    again = tmp_path / "config.json"
    again.write_text(json.dumps(plan.to_json()))
    assert make_plan(read_settings(again), options()) == plan


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"model": {"widht": 3}}, "unknown option model.'widht'; did you mean 'width'"),
        ({"trian": {}}, "unknown option 'trian'; did you mean 'train'"),
        ({"model": 3}, "model must be a table of options, got 3"),
        ({"train": {"epochs": "many"}}, "train.epochs must be int, got 'many'"),
        ({"train": {"epochs": 0}}, "train.epochs must be"),
        ({"train": {"lr": -1}}, "train.lr must be"),
        ({"train": {"clip": 0}}, "train.clip must be"),
        ({"train": {"clip": -1.0}}, "train.clip must be"),
        ({"seeds": "two"}, "got 'two'"),
        ({"seeds": True}, "seeds must be"),
        ({"split": {"rule": "scafold"}}, "split.rule must be one of auto, fixed, "),
        ({"data": {"source": "x", "task": "clases"}}, "data.task must be one of classes, "),
        ({"data": {"source": "x", "target_columns": "y"}}, "data.target_columns must be "),
        ({"data": {"source": "x", "target_columns": [1]}}, "data.target_columns[0] must be str"),
        ({"data": {"source": 3}}, "data.source must be str"),
        ({"data": {}}, "no dataset"),
    ],
)
def test_settings_that_are_wrong_are_named(settings, complaint):
    with pytest.raises(ValueError, match=r".") as error:
        make_plan({"data": {"source": "MUTAG"}} | settings, options())
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.yaml", b"a: 1", ".toml or .json"),
        ("a.json", b"{", "cannot be read"),
        ("a.JSON", b"{", "cannot be read"),
        ("a.json", b'{"data": ' + b"[" * 100_000, "cannot be read"),
        ("a.json", b"[1]", "must hold a table of options, not list"),
        ("a.toml", b"a = ", "cannot be read"),
        ("a.toml", b"\xff\xfe", "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, complaint):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r".") as error:
        read_settings(path)
    assert str(path) in str(error.value)
    assert complaint in str(error.value)


def test_molecules_have_canonical_atoms_bonds_and_a_wheel_by_score():
    run = make_plan({}, options(data={"source": "my.csv"})).run
    assert (run.data.atom_order, run.model.conv) == ("canonical", "ogb-gcn")
    assert run.model.pool_options == {"order": "score"}
    named = make_plan({}, options(data={"source": "B3DB"})).run
    assert (named.data.atom_order, named.model.conv) == ("canonical", "ogb-gcn")
    assert named.model.pool_options == {}
    for source in ("MUTAG", "ogbg-molbbbp", "mine.jsonl"):
        assert make_plan({}, options(data={"source": source})).run.data.atom_order == "given"


def test_best_describes_molecules_where_they_have_smiles():
    for source, described in (("my.csv", True), ("ogbg-molhiv", True), ("MUTAG", False)):
        run = make_plan({}, options(data={"source": source}), "best").run
        assert (run.data.molecule_features == ("rdkit2d", "morgan")) is described
        assert run.model.dropout == (0.1 if described else 0.5)
    run = make_plan(
        {}, options(data={"source": "ogbg-molhiv", "molecule_features": ()}), "best"
    ).run
    assert (run.data.molecule_features, run.train.batch_size, run.train.epochs) == ((), 512, 100)


def test_what_the_user_says_of_molecules_holds():
    settings = {
        "data": {"source": "my.csv", "atom_order": "given"},
        "model": {"conv": "gcn", "pool_options": {"order": "index"}},
    }
    run = make_plan(settings, options()).run
    assert (run.data.atom_order, run.model.conv) == ("given", "gcn")
    assert run.model.pool_options == {"order": "index"}


@pytest.mark.parametrize("name", ["gtpool", "sagpool_h", "sagpool_h-rws", "asap-rwsv", "gin"])
def test_methods_on_molecules_keep_their_names(name):
    plan = make_plan({}, options(data={"source": "my.csv"}, model={"pool": name}))
    assert plan.method == name
    wheel = name == "gtpool" or "rws" in name
    assert (plan.run.model.pool_options.get("order") == "score") == wheel
