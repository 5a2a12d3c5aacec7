import csv
import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
import torch
from safetensors.torch import load_file

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.jsonl import read_jsonl
from gtpool.data.formats.table import read_table
from gtpool.data.locate import find_raw
from gtpool.data.molecule import read_molecules
from gtpool.data.schema import Recipe, Schema
from gtpool.data.sources import load
from gtpool.explain import explain_source
from gtpool.explain.source import name_nodes
from gtpool.model.bundle import Bundle, load_bundle, save_bundle
from gtpool.model.classifier import Classifier
from gtpool.predict import evaluate_source, predict_source, schema_of, write_predictions
from gtpool.serve.limits import Limits
from gtpool.serve.request_reader import RequestReader
from gtpool.spec import ModelSpec
from gtpool.study.inputs import shape_of
from gtpool.train.fit import predict


def _bundle(data: GraphDataset, folder: Path, run: dict | None = None, targets=()) -> Bundle:
    """An untrained model of some data, through a file: its answers are as good to compare."""
    torch.manual_seed(0)
    model = Classifier(ModelSpec(width=16, levels=2), shape_of(data)).eval()
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(2.0)  # let the answers differ between graphs
    about = {"schema": data.schema.to_json(), "run": {"data": run or {}}}
    save_bundle(folder, model, {**about, "data": {"target_columns": targets}})
    return load_bundle(folder)


def _logits(bundle: Bundle, data: GraphDataset) -> torch.Tensor:
    return predict(bundle.model, data, torch.arange(len(data)))


@pytest.fixture(scope="module")
def mutag():
    return load("MUTAG")


@pytest.fixture
def molecules(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("smiles,toxic\nCCO,no\nc1ccccc1,yes\nCC(=O)O,no\nC#N,yes\n")
    return _bundle(read_table(path).dataset, tmp_path / "model")


def test_a_named_set_is_answered_as_the_model_answers(mutag, tmp_path):
    bundle = _bundle(mutag, tmp_path / "model")
    found = predict_source(bundle, "MUTAG")
    logits = _logits(bundle, mutag)
    assert found.unit == "graph"
    assert found.targets == ("-1", "1")
    assert [row.number for row in found.rows] == list(range(188))
    assert [row.value for row in found.rows] == [("-1", "1")[at] for at in logits.argmax(1)]
    shares = torch.tensor([row.probabilities for row in found.rows], dtype=torch.double)
    torch.testing.assert_close(shares, logits.double().softmax(1))
    assert all(row.reason is None for row in found.rows)


def test_tu_folder_without_labels_and_with_an_unknown_atom(mutag, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(find_raw("MUTAG"), folder)
    for old in folder.glob("MUTAG_*"):
        old.rename(folder / old.name.replace("MUTAG_", "mine_"))
    (folder / "mine_graph_labels.txt").unlink()
    labels = (folder / "mine_node_labels.txt").read_text().split()
    labels[int(mutag.node_ptr[5])] = "99"
    (folder / "mine_node_labels.txt").write_text("\n".join(labels) + "\n")
    bundle = _bundle(mutag, tmp_path / "model")
    rows, whole = predict_source(bundle, folder).rows, predict_source(bundle, "MUTAG").rows
    assert [row.number for row in rows] == list(range(188))
    assert rows[5].reason == "node label 99 was not in the training data"
    assert rows[5].value is None
    for at in (0, 4, 6, 187):  # those around it are not shifted
        assert rows[at].probabilities == pytest.approx(whole[at].probabilities, abs=1e-6)
    with pytest.raises(ValueError, match="has no graph that has a label"):
        evaluate_source(bundle, folder)


def test_labels_in_several_columns_are_those_of_tu_folders_and_json_lines(tmp_path):
    folder, lines = tmp_path / "mine", tmp_path / "mine.jsonl"
    folder.mkdir()
    kinds = [[[0, 5], [1, 5]], [[0, 6], [0, 5]], [[1, 6], [1, 6]], [[0, 5], [0, 6]]]
    bonds = [[[3, 1]], [[3, 2]], [[4, 1]], [[4, 2]]]
    nodes = "".join(f"{a}, {b}\n" for kind in kinds for a, b in kind)
    ends = ((2 * at + 1, 2 * at + 2) for at in range(4))
    files = {
        "A": "".join(f"{a}, {b}\n{b}, {a}\n" for a, b in ends),
        "graph_indicator": "1\n1\n2\n2\n3\n3\n4\n4\n",
        "node_labels": nodes,
        "edge_labels": "".join(f"{a}, {b}\n" * 2 for ((a, b),) in bonds),
        "graph_labels": "1\n2\n1\n2\n",
    }
    for part, text in files.items():
        (folder / f"mine_{part}.txt").write_text(text)
    graphs = [
        {"edges": [[0, 1]], "undirected": True, "node_labels": kind, "edge_labels": bond}
        for kind, bond in zip(kinds, bonds, strict=True)
    ]
    lines.write_text("".join(json.dumps(graph) + "\n" for graph in graphs))
    data = load(folder)
    bundle = _bundle(data, tmp_path / "model")
    found, same = predict_source(bundle, folder).rows, predict_source(bundle, lines).rows
    assert [row.probabilities for row in found] == [row.probabilities for row in same]
    schema = schema_of(bundle)
    reader = RequestReader(bundle.model, schema, Limits())
    asked = [*graphs, reader.example()]
    question = reader.read_predict(json.dumps({"graphs": asked}).encode(), monotonic() + 60)
    assert not question.reasons
    assert torch.equal(question.data.x[:8], data.x)
    assert name_nodes(data, 1) == ["0,6", "0,5"]
    lone = reader.read_predict(
        b'{"graphs": [{"edges": [], "node_labels": [[0, 5]]}]}', monotonic() + 60
    )
    assert lone.data.edge_attr.shape == (0, 4)
    (row,) = explain_source(bundle, folder, graph=2, epochs=2).graphs
    assert row.names == ["1,6", "1,6"]


def test_statistics_are_those_of_the_training_part(tmp_path):
    record = {"nodes": 2, "edges": [[0, 1]], "undirected": True}
    lines = [{**record, "node_features": [[at], [2 * at]], "label": at % 2} for at in range(10)]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = read_jsonl(path).standardized([0, 1, 2, 3])
    bundle = _bundle(data, tmp_path / "model")
    logits = _logits(bundle, data)
    new = tmp_path / "new.jsonl"
    new.write_text(json.dumps({**record, "node_features": [[7], [14]]}) + "\n")
    (row,) = predict_source(bundle, new).rows
    assert row.probabilities == pytest.approx(logits[7].softmax(0).tolist(), abs=1e-6)
    wide = tmp_path / "wide.jsonl"
    wide.write_text(json.dumps({**record, "node_features": [[7, 1], [14, 1]]}) + "\n")
    with pytest.raises(
        ValueError, match="wide has 2 node attributes, but the model was trained on 1"
    ):
        predict_source(bundle, wide)


def test_json_lines_keep_line_id_and_order(tmp_path):
    graph = {"edges": [[0, 1], [1, 2]], "undirected": True}
    train = tmp_path / "train.jsonl"
    kinds = [[0, 0, 1], [0, 1, 1], [1, 1, 1], [0, 0, 0]]
    lines = [{**graph, "node_labels": kind, "label": "ab"[at % 2]} for at, kind in enumerate(kinds)]
    train.write_text("".join(json.dumps(line) + "\n" for line in lines))
    bundle = _bundle(read_jsonl(train), tmp_path / "model")
    new = tmp_path / "new.jsonl.gz"
    text = [
        json.dumps({**graph, "node_labels": [0, 0, 1], "id": "first", "label": "z"}),
        "",
        json.dumps({**graph, "node_labels": [0, 7, 8], "id": 12}),
        json.dumps({**graph, "node_labels": [1, 1, 1]}),
    ]
    new.write_bytes(gzip.compress("\n".join(text).encode()))
    found = predict_source(bundle, new)
    assert found.unit == "line"
    assert [(row.number, row.id) for row in found.rows] == [(1, "first"), (3, "12"), (4, "")]
    assert [row.reason is None for row in found.rows] == [True, False, True]
    assert found.rows[1].reason == "node label 7 was not in the training data"
    expected = _logits(bundle, read_jsonl(train)).softmax(1)
    assert found.rows[0].probabilities == pytest.approx(expected[0].tolist(), abs=1e-6)
    assert found.rows[2].probabilities == pytest.approx(expected[2].tolist(), abs=1e-6)
    with pytest.raises(ValueError, match=r"line 1 \(id 'first'\): .*class 'z'.* a, b"):
        evaluate_source(bundle, new)
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps({**graph, "nodes": 3}) + "\n")
    with pytest.raises(ValueError, match="trained on graphs with node labels"):
        predict_source(bundle, bare)


def test_a_file_in_which_no_row_can_be_predicted(molecules, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("smiles\nC1CC\n")
    (row,) = predict_source(molecules, path).rows
    assert row.reason == "not a valid SMILES"


def test_table_every_row_once_in_order_and_reasons(molecules, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text('smiles,name\nCCO,"a, b"\nC1CC,x\n\n,y\nC#N,z\n')
    found = predict_source(molecules, path)
    assert [row.number for row in found.rows] == [2, 3, 5, 6]
    assert [row.id for row in found.rows] == ["CCO", "C1CC", "", "C#N"]
    reasons = [row.reason for row in found.rows]
    assert reasons == [None, "not a valid SMILES", "the SMILES is empty", None]
    data = read_molecules(["CCO", "C#N"]).to_dataset(torch.empty(2, 0), "x", "regression", ())
    expected = _logits(molecules, data).softmax(1).tolist()
    assert found.rows[0].probabilities == pytest.approx(expected[0], abs=1e-6)
    assert found.rows[3].probabilities == pytest.approx(expected[1], abs=1e-6)

    out = tmp_path / "deep" / "predictions.csv"
    write_predictions(out, found)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert list(rows[0]) == ["smiles", "name", "line", "prediction", "p_no", "p_yes", "reason"]
    assert [row["line"] for row in rows] == ["2", "3", "5", "6"]
    assert rows[0]["prediction"] in {"no", "yes"}
    assert float(rows[0]["p_no"]) + float(rows[0]["p_yes"]) == pytest.approx(1, abs=2e-6)
    assert rows[1]["prediction"] == rows[1]["p_no"] == ""
    assert rows[1]["reason"] == "not a valid SMILES"
    assert [path.name for path in out.parent.iterdir()] == ["predictions.csv"]


def test_evaluation_takes_the_classes_from_the_model(molecules, tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("smiles,toxic\nCCO,yes\nC1CC,yes\nC#N,\nCCC,yes\n")  # a file of one class
    found = evaluate_source(molecules, path)
    rows = [row for row in predict_source(molecules, path).rows if row.number in {2, 5}]
    right = sum(row.value == "yes" for row in rows)
    assert found["metric"] == "accuracy"
    assert found["value"] == right / 2
    assert found["graphs"] == 2
    assert found["targets"] == ["no", "yes"]
    assert found["confusion"] == [[0, 0], [2 - right, right]]
    assert found["left_out"] == [
        {"line": 3, "reason": "not a valid SMILES"},
        {"line": 4, "reason": "no label"},
    ]
    path.write_text("smiles,toxic\nCCO,yes\nCCC,maybe\n")
    with pytest.raises(ValueError, match=r"one.csv, line 3: .*class 'maybe'.* no, yes"):
        evaluate_source(molecules, path)


def test_a_word_for_missing_is_no_label(molecules, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("smiles,toxic\nCCO,no\nCC,NA\nC,yes\n")
    found = evaluate_source(molecules, path)
    assert found["graphs"] == 2
    assert found["left_out"] == [{"line": 3, "reason": "no label"}]


def test_a_graph_on_which_the_network_overflows_has_a_reason_and_no_answer(tmp_path):
    rows = [[[1.0], [0.5]], [[1e30], [-1e30]], [[0.0], [2.0]]]
    lines = [
        {"node_features": row, "edges": [[0, 1]], "label": label}
        for row, label in zip(rows, "aba", strict=True)
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    bundle = _bundle(read_jsonl(path), tmp_path / "model")
    found = predict_source(bundle, path).rows
    assert [row.value is None for row in found] == [False, True, False]
    assert "large" in str(found[1].reason)
    assert evaluate_source(bundle, path)["left_out"] == [{"line": 2, "reason": found[1].reason}]


def test_columns_are_those_of_the_training_run(tmp_path):
    train = tmp_path / "train.csv"
    train.write_text("structure,weight,active\nCCO,1,0\nCCC,2,1\nC,3,1\n")
    table = read_table(train, smiles_column="structure", target_columns=["active"])
    run = {"smiles_column": "structure", "target_columns": ["active"]}
    bundle = _bundle(table.dataset, tmp_path / "model", run)
    assert evaluate_source(bundle, train)["graphs"] == 3
    assert len(predict_source(bundle, train).rows) == 3
    renamed = tmp_path / "renamed.csv"
    renamed.write_text("mol,a,b\nCCO,1.0,0\nCCC,1,0\n")
    asked = evaluate_source(bundle, renamed, smiles_column="mol", target_columns=["a"])
    assert sum(map(sum, asked["confusion"])) == asked["confusion"][1][0] + asked["confusion"][1][1]
    with pytest.raises(ValueError, match="no column 'structure'"):
        predict_source(bundle, renamed)


def test_the_target_column_found_at_the_training_is_the_one_compared(tmp_path):
    train = tmp_path / "train.csv"
    train.write_text("smiles,bbb\nCCO,1\nCCC,0\nC,1\n")
    table = read_table(train)
    bundle = _bundle(table.dataset, tmp_path / "model", targets=table.targets)
    alone = evaluate_source(bundle, train)
    other = tmp_path / "other.csv"
    other.write_text("smiles,other,bbb\nCCO,0,1\nCCC,1,0\nC,0,1\n")
    found = evaluate_source(bundle, other)
    assert found["confusion"] == alone["confusion"]
    assert found["compared"] == [{"column": "bbb", "target": "bbb"}]
    other.write_text("smiles,x,y\nCCO,0,1\nCCC,1,0\n")
    says = r"no column 'bbb', the target of the model.*--target-columns.*'x', 'y'"
    with pytest.raises(ValueError, match=says):
        evaluate_source(bundle, other)
    other.write_text("smiles,x\nCCO,1\nCCC,0\nC,1\n")
    found = evaluate_source(bundle, other)
    assert found["confusion"] == alone["confusion"]
    assert found["compared"] == [{"column": "x", "target": "bbb"}]


def test_target_columns_are_matched_by_name_or_by_position_never_both(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("smiles,a,b,c\nCCO,1,0,2\nCCC,0,5,1\nC,1,1,0\n")
    data = read_table(path, target_columns=["a", "b"], task="regression").dataset
    bundle = _bundle(data, tmp_path / "model")
    usual = evaluate_source(bundle, path)
    assert evaluate_source(bundle, path, target_columns=["b", "a"]) == usual
    found = evaluate_source(bundle, path, target_columns=["a", "c"])
    assert found["compared"] == [
        {"column": "a", "target": "a"},
        {"column": "c", "target": "b"},
    ]
    says = "'b' is number 1 of target_columns .*number 2 of the model's targets.* a, b, in this"
    for columns in (["b", "c"], ["b"]):
        with pytest.raises(ValueError, match=says):
            evaluate_source(bundle, path, target_columns=columns)
    with pytest.raises(ValueError, match="target columns given: 1; the model has 2 targets"):
        evaluate_source(bundle, path, target_columns=["a"])


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_several_tasks(tmp_path, task):
    train = tmp_path / "train.csv"
    train.write_text("smiles,a,b\nCCO,1,0\nCCC,0,\nC,1,1\nC1C,1,1\n")
    data = read_table(train, target_columns=["a", "b"], task=task).dataset
    bundle = _bundle(data, tmp_path / "model")
    found = predict_source(bundle, train)
    outputs = _logits(bundle, data)
    if task == "binary":
        shares = [row.probabilities for row in found.rows[:3]]
        torch.testing.assert_close(torch.tensor(shares), outputs.sigmoid())
        assert [row.value for row in found.rows[:3]] == [
            tuple(int(one > 0) for one in row) for row in outputs.tolist()
        ]
    else:
        assert [row.value for row in found.rows[:3]] == [tuple(row) for row in outputs.tolist()]
    write_predictions(tmp_path / "out.csv", found)
    (first, *_, last) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert float(first["prediction_b"]) == found.rows[0].value[1]
    assert ("p_b" in first) == (task == "binary")
    assert last["prediction_a"] == ""
    assert last["reason"] == "not a valid SMILES"
    scored = evaluate_source(bundle, train)
    assert scored["metric"] == {"binary": "roc_auc", "regression": "rmse"}[task]
    assert scored["graphs"] == 3
    assert [(each["task"], each["labels"]) for each in scored["tasks"]] == [("a", 3), ("b", 2)]
    if task == "regression":
        known = ~data.y.isnan()
        rmse = (outputs - data.y)[known].square().mean().sqrt().item()
        assert scored["value"] == pytest.approx(rmse, abs=1e-5)
        alone = (outputs - data.y)[:, 0].square().mean().sqrt().item()
        assert scored["tasks"][0]["value"] == pytest.approx(alone, abs=1e-5)


def test_saved_dataset_raw_scaled_or_by_other_statistics(tmp_path):
    torch.manual_seed(1)
    schema = Schema("mine", "classes", ("no", "yes"), Recipe("given", attributes=3))
    data = GraphDataset(
        torch.randn(40, 3) * 5 + 2,
        torch.tensor([[0], [1]]).repeat(1, 10).int(),
        None,
        torch.full((10,), 4),
        torch.ones(10, dtype=torch.long),
        torch.arange(10) % 2,
        schema,
    )
    scaled = data.standardized(range(6))
    bundle = _bundle(scaled, tmp_path / "model")
    for name, part in (("raw", data), ("scaled", scaled), ("other", data.standardized([0, 1]))):
        part.save(tmp_path / name)
    first, second = (predict_source(bundle, tmp_path / name).rows for name in ("raw", "scaled"))
    assert [row.value for row in first] == [row.value for row in second]
    assert first[0].probabilities == pytest.approx(second[0].probabilities)
    assert evaluate_source(bundle, tmp_path / "raw")["graphs"] == 10
    with pytest.raises(ValueError, match="other statistics"):
        predict_source(bundle, tmp_path / "other")
    load("MUTAG").save(tmp_path / "mutag")
    with pytest.raises(ValueError, match=r"other features \(gmt, 7 labels.*\(given, 3 attr"):
        predict_source(bundle, tmp_path / "mutag")


def test_other_classes_in_a_saved_dataset_are_matched_by_name(mutag, tmp_path):
    bundle = _bundle(mutag, tmp_path / "model")
    turned = replace(mutag, y=1 - mutag.y, schema=replace(mutag.schema, targets=("1", "-1")))
    turned.save(tmp_path / "turned")
    expected = evaluate_source(bundle, "MUTAG")
    assert evaluate_source(bundle, tmp_path / "turned") == expected
    strange = replace(mutag, schema=replace(mutag.schema, targets=("safe", "1")))
    strange.save(tmp_path / "strange")
    with pytest.raises(ValueError, match="class 'safe'"):
        evaluate_source(bundle, tmp_path / "strange")


def test_molecules_and_other_graphs_are_not_mixed_up(molecules, mutag, tmp_path):
    with pytest.raises(ValueError, match="trained on molecules; MUTAG"):
        predict_source(molecules, "MUTAG")
    table = tmp_path / "new.csv"
    table.write_text("smiles\nCCO\n")
    with pytest.raises(ValueError, match="not trained on molecules"):
        predict_source(_bundle(mutag, tmp_path / "graphs"), table)


def test_a_source_that_is_not_there(molecules, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        predict_source(molecules, tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="device must be auto"):
        predict_source(molecules, tmp_path / "train.csv", device="gpu")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": None}, "does not say what the model was trained on"),
        ({"schema": {"name": "x"}}, "does not say"),
        ({"targets": ["a"]}, "names 1 targets, but its network has 2 outputs"),
        ({"targets": "ab"}, "invalid schema of the training data"),
        ({"task": "magic"}, "invalid schema of the training data"),
        ({"labels": ["__import__('os')"]}, "invalid schema of the training data"),
        ({"labels": [3, 1, 2]}, "invalid schema of the training data"),
        ({"attributes": 2, "mean": [0.0], "std": [1.0]}, "invalid schema of the training data"),
        ({"hook": "os.system"}, "does not say"),
        ({"labels": [0, 1, 2, 3, 4, 5]}, "makes 6 node and 4 edge columns"),
    ],
    ids=str,
)
def test_a_bundle_whose_schema_is_strange_is_refused(mutag, tmp_path, change, says):
    bundle = _bundle(mutag, tmp_path / "model")
    schema = json.loads(json.dumps(mutag.schema.to_json()))
    for key, value in change.items():
        if key in {"targets", "task"}:
            schema[key] = value
        elif key == "schema":
            schema = value
        else:
            schema["recipe"][key] = value
    strange = bundle._replace(about={"schema": schema})
    with pytest.raises(ValueError, match=says):
        predict_source(strange, "MUTAG")


def test_writing_is_whole_or_not_at_all(molecules, tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("before")
    path.chmod(0o444)
    table = tmp_path / "new.csv"
    table.write_text("smiles\nCCO\n")
    found = predict_source(molecules, table)
    write_predictions(path, found)
    assert path.read_text().startswith("smiles,line,prediction")
    with pytest.raises(OSError, match="cannot be written"):
        write_predictions(table / "below a file.csv", found)


def test_weights_on_disk_are_not_touched_by_predicting(molecules, tmp_path):
    before = load_file(tmp_path / "model" / "model.safetensors")
    predict_source(molecules, tmp_path / "train.csv")
    after = molecules.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


ALANINE = ("C[C@H](N)C(=O)O", "C(=O)([C@H](C)N)O", "N[C@@H](C)C(O)=O", "OC(=O)[C@@H](N)C")


def test_one_molecule_has_one_answer_however_it_is_written(molecules, tmp_path):
    path = tmp_path / "alanine.csv"
    path.write_text("smiles\n" + "".join(f"{smiles}\n" for smiles in ALANINE))
    found = torch.tensor([row.probabilities for row in predict_source(molecules, path).rows])
    torch.testing.assert_close(found, found[:1].expand(4, -1), rtol=0, atol=1e-6)


def test_a_bundle_of_before_reads_atoms_as_given(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("smiles,toxic\nCCO,no\nc1ccccc1,yes\nCC(=O)O,no\nC#N,yes\n")
    data = read_table(path, atom_order="given").dataset
    schema = data.schema.to_json()
    del schema["recipe"]["atom_order"]
    bundle = _bundle(data, tmp_path / "model")
    bundle.about["schema"] = schema
    expected = _logits(bundle, data).softmax(1)
    found = [row.probabilities for row in predict_source(bundle, path).rows]
    torch.testing.assert_close(torch.tensor(found), expected)


def _written(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_a_table_keeps_its_columns_and_cells_as_they_are(molecules, tmp_path):
    header = [" name", "smiles", "note"]
    cells = [
        [" a, b ", "CCO", '=1+1 "x"'],
        ["-", "C1CC", "two\nlines"],
        ["", " C#N ", "a\rb\x1b"],
        ["'x", "", "\ttab"],
    ]
    path, out = tmp_path / "new.csv", tmp_path / "out.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([header, *cells])
    found = predict_source(molecules, path)
    write_predictions(out, found)
    heads, *rows = _written(out)
    assert heads == [*header, "line", "prediction", "p_no", "p_yes", "reason"]
    assert [row[:3] for row in rows] == cells
    assert [row[3] for row in rows] == ["2", "3", "5", "6"]
    assert [bool(row[4]) for row in rows] == [True, False, True, False]
    assert [bool(row[7]) for row in rows] == [False, True, False, True]
    again = predict_source(molecules, out)  # what was written is a table that can be read
    assert [row.probabilities for row in again.rows] == [row.probabilities for row in found.rows]


def test_names_that_the_table_has_already_get_a_prefix(molecules, tmp_path):
    path, out = tmp_path / "new.tsv", tmp_path / "out.tsv"
    path.write_text("smiles\treason \tline\tgtpool_line\nCCO\tasked\t7\t8\n")
    write_predictions(out, predict_source(molecules, path))
    heads, row = _written(out)
    assert heads[:4] == ["smiles", "reason ", "line", "gtpool_line"]
    assert heads[4:] == ["gtpool_gtpool_line", "prediction", "p_no", "p_yes", "gtpool_reason"]
    assert row[:5] == ["CCO", "asked", "7", "8", "2"]


@pytest.mark.parametrize("source", ["table", "jsonl"])
def test_our_own_text_is_no_formula(tmp_path, source):
    names = ("=cmd|' /C calc'!A0", "+x")
    graph = {"edges": [[0, 1]], "node_labels": [0, 1], "undirected": True}
    lines = [{**graph, "id": "@id", "label": name} for name in names]
    path = tmp_path / "new.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if source == "table":
        path = tmp_path / "new.csv"
        path.write_text(f"smiles,y\nCCO,{names[0]}\nC,{names[1]}\n")
    data = read_table(path).dataset if source == "table" else read_jsonl(path)
    bundle = _bundle(data, tmp_path / "model")
    found = predict_source(bundle, path)
    rows = [row._replace(value=name) for row, name in zip(found.rows, names, strict=True)]
    write_predictions(tmp_path / "out.csv", found._replace(rows=tuple(rows)))
    first, second = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert (first["prediction"], second["prediction"]) == (f"'{names[0]}", "'+x")
    if source == "table":
        assert first["y"] == names[0]  # the user's own
    else:
        assert first["id"] == "'@id"


def test_a_model_trained_on_another_column_also_takes_smiles(tmp_path):
    train = tmp_path / "train.csv"
    train.write_text("mol,y\nCCO,0\nCCC,1\nC,1\n")
    run = {"smiles_column": "mol", "target_columns": ["y"]}
    bundle = _bundle(read_table(train, smiles_column="mol").dataset, tmp_path / "model", run)
    new = tmp_path / "new.csv"
    new.write_text("Smiles,y\nCCO,0\nCCC,1\n")
    assert [row.id for row in predict_source(bundle, new).rows] == ["CCO", "CCC"]
    assert evaluate_source(bundle, new)["graphs"] == 2
    assert len(explain_source(bundle, new, graph=2, epochs=1).graphs) == 1
    new.write_text("smiles,mol,y\nC,CCO,0\n")  # the trained name goes first
    assert [row.id for row in predict_source(bundle, new).rows] == ["CCO"]
    new.write_text("molecule,y\nC,0\n")
    for use in (predict_source, evaluate_source, explain_source):
        with pytest.raises(ValueError, match="its columns are 'molecule', 'y'"):
            use(bundle, new)
