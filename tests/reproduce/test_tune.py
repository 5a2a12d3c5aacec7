"""The choice of a network on validation parts."""

import json
from dataclasses import replace
from random import Random

import optuna
import pytest
from typer.testing import CliRunner

from gtpool.cli import app
from gtpool.model import METHODS
from gtpool.model.check import check_spec
from gtpool.reproduce import tune as tuning
from gtpool.reproduce.candidates import config_runs, sample_configs, search_space
from gtpool.reproduce.paper import find_studies
from gtpool.reproduce.status import find_runs
from gtpool.reproduce.tune import TuningResult, describe_choice, tune
from gtpool.study.halving import Budget
from gtpool.study.optuna_study import open_journal
from gtpool.study.result import RunResult
from gtpool.study.run import run_many
from gtpool.study.run_one import group_by_network
from gtpool.study.store import Store

SMALL = {"model.width": (8, 4), "train.lr": (0.01, 0.001), "pool.order": ("index", "score")}
MODEL = {"pool": "gtpool-v", "levels": 1}


def _row(spec, loss, **more):
    known = {
        "key": spec.key,
        "spec": spec.to_json(),
        "status": "done",
        "error": None,
        "valid_loss": loss,
        "valid_metric": 1 - loss,
        "higher_is_better": True,
        "test": 1 - loss,
    }
    return RunResult.from_json(known | more)


def failed(spec, error):
    return _row(spec, 0.5, status="failed", error=error)


def test_configurations_differ_start_with_the_paper_and_come_again_with_the_seed():
    drawn = sample_configs(search_space("MUTAG", MODEL), 50, seed=3)
    assert len({tuple(options.items()) for options in drawn}) == 50
    assert drawn[0]["model.conv"] == "gcn"
    assert drawn[0]["train.lr"] == 5e-4
    assert drawn == sample_configs(search_space("MUTAG", MODEL), 50, seed=3)
    plain, protocol = config_runs("MUTAG", {}, drawn[0]), config_runs("MUTAG", {}, {})
    assert plain == protocol


@pytest.mark.parametrize("dataset", ["MUTAG", "ogbg-molbbbp", "ogbg-molhiv"])
@pytest.mark.parametrize("method", METHODS)
def test_a_search_starts_with_the_method_itself_and_keeps_what_makes_it(dataset, method):
    model = METHODS[method].model
    space = search_space(dataset, model)
    first = sample_configs(space, 1)[0]
    assert config_runs(dataset, model, first) == config_runs(dataset, model, {})
    fixed = {f"model.{option}" for option in ("conv", "levels") if option in model}
    fixed |= {"model.readout"} if method in ("set2set", "sortpool", "gmt") else set()
    assert not fixed & space.keys()
    assert ("pool.gate" in space) == method.startswith("gtpool")


def test_networks_are_drawn_with_several_rates_that_train_side_by_side():
    drawn = sample_configs(search_space("MUTAG", MODEL), 24)
    networks = [{**options, "train.lr": 0, "train.weight_decay": 0} for options in drawn]
    assert len({str(network) for network in networks}) == 8
    runs = [run for options in drawn for run in config_runs("MUTAG", MODEL, options)]
    groups, alone = group_by_network(runs, 100, None)
    assert [len(together) for together in groups] == [30] * 8
    assert not alone


def test_a_small_space_is_drawn_whole():
    assert len(sample_configs(SMALL, 100)) == 8
    assert len(sample_configs(SMALL, 100, fits=lambda options: options["model.width"] == 8)) == 4


def test_what_does_not_go_together_is_not_drawn_and_costs_no_place():
    narrow = sample_configs(SMALL, 5, fits=lambda options: options["model.width"] == 8)
    assert {options["model.width"] for options in narrow} == {8}
    assert len(narrow) == 4  # all there are
    assert sample_configs(SMALL, 5, fits=lambda _: False) == ()


@pytest.mark.parametrize("method", ["asap", "gtpool-v"])
def test_every_network_that_a_search_starts_with_can_be_made(method, tmp_path):
    model, started = METHODS[method].model, []

    def run(specs):
        started.extend(specs)
        return [_row(spec, 0.5) for spec in specs]

    tune("MUTAG", model, run, tmp_path, budget=Budget(24, (), 1.0, 1))
    assert len({replace(spec, split=None) for spec in started}) == 24
    for spec in started:
        check_spec(spec.model)
    deep = {spec.model.conv for spec in started if spec.model.levels > 1}
    assert ("gin" in deep) == (method == "gtpool-v")


def test_a_space_without_any_network_is_refused_in_words(tmp_path):
    space = {"model.conv": ("gin",), "model.levels": (2,)}
    with pytest.raises(ValueError, match="no choices of this space go together"):
        tune("MUTAG", {"pool": "diffpool"}, list, tmp_path, space=space)


def test_options_reach_the_network_the_training_and_the_pooler():
    options = {"model.conv": "gin", "train.lr": 1e-3, "pool.gate": "tanh", "pool.heads": 1}
    runs = config_runs("PTC_MR", {"pool": "gtpool"}, options)
    assert len(runs) == 10
    assert (runs[3].split.fold, runs[3].model.conv, runs[3].train.lr) == (3, "gin", 1e-3)
    assert runs[3].model.pool_options == {"gate": "tanh"}


class Untested(RunResult):
    """A result that does not tell of the test part."""

    def __getattribute__(self, name):
        known = {"status", "done", "error", "valid_loss", "valid_metric"}
        assert name in known or name.startswith("__"), f"{name} was looked at"
        return super().__getattribute__(name)


def trials_of(folder, what):
    """Read the trials of a fold, or of the pooled choice, from the journal."""
    storage = open_journal(folder)
    (name,) = [name for name in optuna.get_all_study_names(storage) if f", {what} " in name]
    return optuna.load_study(study_name=name, storage=storage).get_trials()


def test_the_better_share_goes_on_the_first_of_equals_and_what_failed_does_not(tmp_path):
    losses = {64: 0.4, 32: None, 16: 0.3, 8: 0.3, 4: 0.9}

    def run(specs):
        return [
            failed(spec, "the loss is not finite")
            if losses[spec.model.width] is None and spec.split.fold == 1
            else _row(spec, losses[spec.model.width] or 0.0)
            for spec in specs
        ]

    space = {"model.width": tuple(losses)}
    tuned = tune("MUTAG", MODEL, run, tmp_path, space=space, budget=Budget(5, (5,), 0.5))
    states = [trial.state.name for trial in trials_of(tmp_path, "fold 2")]
    assert states == ["PRUNED", "FAIL", "COMPLETE", "COMPLETE", "PRUNED"]
    assert trials_of(tmp_path, "fold 2")[1].user_attrs["error"] == "the loss is not finite"
    assert trials_of(tmp_path, "pooled")[1].state.name == "FAIL"
    assert [options["model.width"] for options in tuned.per_fold] == [32, 16] + [32] * 8
    assert tuned.pooled["model.width"] == 16


def test_the_same_command_tries_again_what_failed_and_does_nothing_else_twice(tmp_path):
    asked, broken = [], [True]

    def run(specs):
        asked.append(len(specs))
        return [
            failed(spec, "the card is gone")
            if broken[0] and spec.model.width == 4 and spec.split.fold == 3
            else _row(spec, spec.model.width / 10)
            for spec in specs
        ]

    how = {"space": {"model.width": (8, 4)}, "budget": Budget(2, (5,), 0.5, 1)}
    first = tune("MUTAG", MODEL, run, tmp_path, **how)
    assert [options["model.width"] for options in first.per_fold] == [4, 4, 4, 8] + [4] * 6
    assert first.pooled["model.width"] == 8
    broken[0] = False
    asked.clear()
    again = tune("MUTAG", MODEL, run, tmp_path, **how)
    assert {options["model.width"] for options in (*again.per_fold, again.pooled)} == {4}
    assert asked == [10, 10]  # fold 4, and all folds for the mean over them
    asked.clear()
    assert tune("MUTAG", MODEL, run, tmp_path, **how) == again
    assert asked == []


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_what_was_interrupted_chooses_what_it_would_have_chosen(tmp_path, calls):
    losses = Random(calls)  # noqa: S311 - no secret
    drawn: dict[str, float] = {}

    def run(specs):
        return [_row(spec, drawn.setdefault(spec.key, losses.random())) for spec in specs]

    def interrupted(specs, done=[]):  # noqa: B006 - counts calls
        done.append(specs)
        if len(done) == calls:
            raise KeyboardInterrupt
        return run(specs)

    how = {"space": SMALL, "budget": Budget(8, (4, 8), 0.5)}
    whole = tune("MUTAG", MODEL, run, tmp_path / "whole", **how)
    with pytest.raises(KeyboardInterrupt):
        tune("MUTAG", MODEL, interrupted, tmp_path / "stopped", **how)
    assert tune("MUTAG", MODEL, run, tmp_path / "stopped", **how) == whole
    values = [
        [trial.intermediate_values for trial in trials_of(tmp_path / folder, "pooled")
         if trial.state.name != "FAIL"]
        for folder in ("whole", "stopped")
    ]  # fmt: skip
    assert sorted(map(str, values[0])) == sorted(map(str, values[1]))


def test_a_second_process_does_not_join_a_choice_that_is_on_its_way(tmp_path):
    how = {"space": {"model.width": (8, 4)}, "budget": Budget(2, (5,))}
    said = []

    def run(specs):
        if not said:
            with pytest.raises(ValueError, match=r"another process .*MUTAG gtpool-v"):
                tune("MUTAG", MODEL, run, tmp_path, **how)
            said.append(True)
        return [_row(spec, 0.5) for spec in specs]

    assert len(tune("MUTAG", MODEL, run, tmp_path, **how).per_fold) == 10


def test_where_all_runs_fail_nothing_is_chosen(tmp_path):
    def run(specs):
        return [failed(spec, "nan") for spec in specs]

    with pytest.raises(ValueError, match="all runs on fold 1 of MUTAG gtpool-v failed"):
        tune("MUTAG", MODEL, run, tmp_path, space={"model.width": (8, 4)}, budget=Budget(2, (5,)))


def test_where_all_runs_of_the_whole_protocol_fail_nothing_is_chosen(tmp_path):
    def run(specs):
        """Let fold 3 fail once it trains for long."""
        return [
            failed(spec, "nan")
            if spec.split.fold == 3 and spec.train.epochs == 500
            else _row(spec, 0.5)
            for spec in specs
        ]

    with pytest.raises(ValueError, match="all runs on fold 4 of MUTAG gtpool-v failed"):
        tune("MUTAG", MODEL, run, tmp_path, space={"model.width": (8, 4)}, budget=Budget(2, (5,)))


def test_each_fold_chooses_by_its_own_part_and_never_by_the_test_part(tmp_path):
    def run(specs):
        """Give fold 3 another taste, and better test figures to what loses."""
        rows = []
        for spec in specs:
            wide, odd = spec.model.width == 8, spec.split.fold == 3
            loss = 0.5 if wide == odd else 0.6
            rows.append(Untested.from_json(_row(spec, loss, test=loss).to_json()))
        return rows

    found = tune(
        "MUTAG", MODEL, run, tmp_path, space={"model.width": (8, 4)}, budget=Budget(2, (5,))
    )
    widths = [options["model.width"] for options in found.per_fold]
    assert widths == [4, 4, 4, 8, 4, 4, 4, 4, 4, 4]
    assert found.pooled["model.width"] == 4


def test_rounds_grow_longer_and_have_fewer_runs(tmp_path):
    asked = []

    def run(specs):
        asked.append(list(specs))
        return [_row(spec, spec.model.width + spec.train.lr) for spec in specs]

    budget = Budget(configs=8, epochs=(4, 8), keep=0.5, seeds=2)
    found = tune("MUTAG", MODEL, run, tmp_path, space=SMALL, budget=budget)
    assert [len(specs) for specs in asked] == [80, 40, 40]
    assert [{spec.train.epochs for spec in specs} for specs in asked] == [{4}, {8}, {500}]
    assert {spec.seed for spec in asked[2]} == {42, 43}
    assert found.rounds == (4, 8, 500)
    states = [trial.state.name for trial in trials_of(tmp_path, "fold 10")]
    assert [states.count(state) for state in ("PRUNED", "COMPLETE")] == [6, 2]
    assert found.pooled == {"model.width": 4, "train.lr": 0.001, "pool.order": "index"}


def test_sets_that_pick_the_epoch_by_their_metric_are_tuned_by_it(tmp_path):
    def run(specs):
        return [_row(spec, 0.2 if spec.model.width == 4 else 0.3) for spec in specs]

    found = tune(
        "ogbg-molbbbp", MODEL, run, tmp_path, space={"model.width": (8, 4)}, budget=Budget(2, ())
    )
    assert [trial.value for trial in trials_of(tmp_path, "fold 1")] == [0.7, 0.8]
    assert found.per_fold == ({"model.width": 4},)


def test_a_search_ends_with_what_it_chose_beside_the_defaults():
    options = sample_configs(search_space("MUTAG", MODEL), 1)[0]
    other = {**options, "model.width": 64, "pool.gate": "tanh"}
    lines = describe_choice("MUTAG", MODEL, TuningResult((options, other, other), other, (500,)))
    assert lines == [
        "pooled choice:   model.width 64, pool.gate tanh",
        "folds chose:     2 networks in 3 folds",
    ]
    (line, _) = describe_choice("MUTAG", MODEL, TuningResult((options,), options, (500,)))
    assert line.endswith(" the defaults")


def test_what_was_chosen_can_be_run_counted_and_reported(tmp_path):
    options, path = {"model.width": 24, "train.lr": 1e-3}, tmp_path / "tuned.json"
    choice = {"rounds": [5], "per_fold": [options] * 10, "pooled": {"model.width": 16}}
    path.write_text(json.dumps({"gin": {"MUTAG": choice}}))
    runs = find_runs(["tuned"], "pool=gin", 1, path)
    assert {(run.model.conv, run.model.width, run.train.lr) for run in runs} == {("gin", 24, 1e-3)}
    assert find_studies(["tuned"], path)["tuned"].lines == ("gin", "gin, pooled validation")
    known = ["--choices", str(path), "--output-dir", str(tmp_path / "none")]
    said = CliRunner().invoke(app, ["study", "status", "tuned", *known, "--seeds", "1"]).output
    assert "0 of 20" in said
    more = {"split": {}, "seconds": 1.0, "device": "cpu", "commit": None, "versions": {}}
    more |= {"finished": "", "epoch": 1, "epochs_run": 1, "error": None, "other_rules": {}}
    Store(tmp_path / "rows").put(_row(runs[0], 0.25, metric="accuracy", **more))
    page = tmp_path / "report.md"
    CliRunner().invoke(
        app, ["report", str(tmp_path / "rows"), "--choices", str(path), "-o", str(page)]
    )
    assert "| gin | 75.00 (paper 81.39 ± 1.53, -6.39; ◐ 1 of 100 runs) |" in page.read_text()


@pytest.mark.parametrize("text", ["", "[]", '{"gin": {"MUTAG": {}}}', '{"xx": {"MUTAG": {}}}'])
def test_a_file_that_holds_no_choices_is_named(tmp_path, text):
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tuned\.json is not a tuned\.json"):
        find_studies(["tuned"], path)


@pytest.mark.usefixtures("data_dir")
def test_a_real_search_ends_in_runs_that_can_be_trained(tmp_path):
    store = Store(tmp_path)
    space = {"model.width": (4,), "train.lr": (0.01, 0.02), "train.epochs": (2,)}
    found = tune(
        "MUTAG",
        MODEL,
        lambda specs: run_many(specs, store),
        tmp_path,
        space=space,
        budget=Budget(2, (1,), seeds=1),
    )
    assert len(found.per_fold) == 10
    for trial in trials_of(tmp_path, "pooled"):
        assert trial.value is not None


def test_choices_of_several_methods_stand_in_one_file(tmp_path, monkeypatch):
    def search(*_args, space, **_):
        (plain, other) = sample_configs(space, 2)
        return TuningResult((plain,) * 9 + (other,), plain, (40, 500))

    monkeypatch.setattr(tuning, "tune", search)
    options = {"budget": (2, (40,), 0.5), "running": (1, 1, "cpu", None)}
    for method in ("gcn", "sagpool_h"):
        *_, command = tuning.tune_dataset(
            "MUTAG", method, tmp_path, convs=("gin", "gcn"), **options
        )
    runs = find_runs(["tuned"], None, 1, tmp_path / "tuned.json")
    assert {run.model.pool for run in runs} == {"none", "sagpool"}
    assert runs[0].model.conv == "gcn"  # the method as it is, though gin was named first
    assert command.endswith(f"--choices {tmp_path}/tuned.json --output-dir {tmp_path}")
    assert json.loads((tmp_path / "tuned.json").read_text())["gcn"]["MUTAG"]["rounds"] == [40, 500]


def test_choices_that_another_process_wrote_during_the_search_stay(tmp_path, monkeypatch):
    def search(*_args, space, **_):
        (plain,) = sample_configs(space, 1)
        (tmp_path / "tuned.json").write_text('{"gin": {"MUTAG": {}}}')
        return TuningResult((plain,) * 10, plain, (500,))

    monkeypatch.setattr(tuning, "tune", search)
    running = (1, 1, "cpu", None)
    tuning.tune_dataset(
        "MUTAG", "gcn", tmp_path, budget=(1, (), 1.0), convs=("gcn",), running=running
    )
    assert json.loads((tmp_path / "tuned.json").read_text()).keys() == {"gin", "gcn"}


def test_a_convolution_that_is_not_there_is_refused_not_left_out(tmp_path):
    options = {"budget": (1, (), 1.0), "running": (1, 1, "cpu", None)}
    with pytest.raises(ValueError, match="unknown conv 'gni'; choose one of 'gcn', 'gin', "):
        tuning.tune_dataset("MUTAG", "gtpool-v", tmp_path, convs=("gcn", "gni"), **options)


def test_choices_that_cannot_be_read_are_noticed_before_the_search(tmp_path):
    (tmp_path / "tuned.json").write_text("[1")
    with pytest.raises(ValueError, match="move or delete it"):
        tuning.tune_dataset(
            "MUTAG", "gcn", tmp_path, budget=(1, (), 1.0), convs=(), running=(1, 1, "cpu", None)
        )


@pytest.mark.parametrize("epochs", [(40, 500), (40, 40), (120, 40)])
def test_a_short_round_is_shorter_than_the_next_and_than_the_protocol(epochs, tmp_path):
    with pytest.raises(ValueError, match="below the 500 of the protocol"):
        tune("MUTAG", MODEL, None, tmp_path, space=SMALL, budget=Budget(2, epochs))
