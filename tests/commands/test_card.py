"""The card of a saved model says what happened, for each way to train it."""

import re

import pytest

from gtpool.data.molecule import b3db_smiles
from gtpool.model.bundle import load_bundle
from gtpool.study.store import Store

SMILES = [text for text in b3db_smiles() if len(text) < 20][:60]
TINY = ("--pool", "gin", "--width", "8", "--epochs", "1")


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    path = tmp_path_factory.mktemp("card") / "mine.csv"
    lines = (f"{text},{'yes' if 'O' in text else 'no'}" for text in SMILES)
    path.write_text("\n".join(["smiles,oxygen", *lines]) + "\n")
    return path


@pytest.fixture
def card_of(gtpool, mine, tmp_path):
    """Train with some options, and return the card, the printed text and the finished runs."""

    def train(*words, start=()):
        out = tmp_path / "out"
        code, shown, err = gtpool("train", mine, *(start or TINY), *words, "--output-dir", out)
        assert code == 0, err
        card = (out / "model" / "README.md").read_text()
        return card, shown, Store(out).rows()

    return train


def test_an_ensemble_of_folds(card_of):
    card, shown, runs = card_of("--folds", "3")
    assert "- target: oxygen\n" in card
    assert "- predicts: classes, no, yes\n" in card
    assert "- data: 60 molecules; about 30 train, 10 validate, 20 test each member\n" in card
    assert "- split: stratified folds, seed 0, 3 folds, half of a fold validates\n" in card
    who = "trained on: 60 of the 60 molecules, 3 networks, seed 42, folds 1, 2, 3; no part of them"
    assert who in card
    assert "- encodings: rwse:16\n" in card
    assert "- molecule features: rdkit2d, morgan\n" in card
    mean = sum(run.test for run in runs) / 3
    figure = re.search(r"- accuracy, cross-validated: (\S+) ± \S+ \(3 runs, ", card)
    assert float(figure[1]) == pytest.approx(mean, abs=1e-4)
    assert f"{100 * mean:.2f} ± " in shown
    losses = sum(run.valid_loss for run in runs) / 3
    told = re.search(r"- loss on validation parts, mean over the members: (\S+)\n", card)
    assert float(told[1]) == pytest.approx(losses, abs=1e-4)
    assert "balanced_accuracy" in re.search(r"- other metrics, mean .*: (.*)", card)[1]
    assert "on the test part" not in card
    assert "model-index" not in card


def test_the_best_fold_and_its_features(card_of):
    card, _, runs = card_of(
        *("--folds", "3", "--handover", "best", "--encode", "none"),
        *("--molecule-features", "morgan"),
    )
    best = min(runs, key=lambda run: run.valid_loss)
    place = f"seed 42, fold {best.spec.split.fold + 1} of 3"
    assert f"- trained on: {best.split.train} of the 60 molecules, {place}\n" in card
    assert f"- accuracy on the test part ({place}): {round(best.test, 4):g}" in card
    assert "- molecule features: morgan\n" in card
    assert "- encodings" not in card
    assert "cross-validated: " in card


@pytest.mark.parametrize(
    ("rule", "name"), [("random", "random split, seed 0"), ("scaffold", "scaffold split")]
)
def test_a_split_without_folds(card_of, rule, name):
    card, _, (one, two) = card_of("--split-type", rule, "--seeds", "2")
    best = min((one, two), key=lambda run: run.valid_loss)
    place = f"seed {best.spec.seed}, one {rule} split"
    assert f"- split: {name}\n" in card
    assert f"- trained on: 48 of the 60 molecules, {place}\n" in card
    assert f"on the test part ({place}): " in card
    assert "- accuracy, mean: " in card
    assert "cross-validated" not in card


@pytest.mark.slow
def test_bags_of_an_ensemble_on_one_split(card_of):
    card, _, _ = card_of("--split-type", "random", "--ensemble", "2", "--bag")
    bags = "2 networks, seeds 42, 43, each with training and validation graphs of its own (bags)"
    assert bags in card
    assert "- split: random split, seed 0, bags\n" in card
    assert "accuracy on the test part (ensemble, one random split)" in card


@pytest.mark.slow
def test_a_blend(card_of):
    card, shown, _ = card_of("--folds", "3", "--blend")
    figure = re.search(r"- accuracy, cross-validated: (\S+) ± \S+ \(3 blends of runs", card)
    printed = re.search(r"^test accuracy, %: (\S+) ", shown, re.MULTILINE)
    assert float(printed[1]) == pytest.approx(100 * float(figure[1]), abs=0.02)
    assert "mean over the members, without the trees: " in card
    assert "- blend: " in card


@pytest.mark.slow
def test_a_model_that_started_from_another(card_of, gtpool, mine, tmp_path):
    base = tmp_path / "base"
    assert gtpool("train", mine, *TINY, "--folds", "3", "--output-dir", base)[0] == 0
    words = ("--from", base / "model", "--freeze-encoder", "--epochs", "1", "--folds", "3")
    card, _, _ = card_of(start=words)
    assert "- starts from: model, encoder frozen, head new\n" in card
    assert str(tmp_path) not in card
    assert load_bundle(tmp_path / "out" / "model").about["data"]["trained"] == 60
