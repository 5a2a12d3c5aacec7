"""Graph pooling and graph classification on PyTorch Geometric, with the GTPool layer.

Public names are imported on first use, so ``import gtpool`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gtpool.data.dataset import GraphDataset
    from gtpool.data.sources import load
    from gtpool.estimator import GraphClassifier, GraphRegressor
    from gtpool.graph import NodeDrop, unpool
    from gtpool.model.bundle import load_bundle, save_bundle
    from gtpool.model.classifier import Classifier
    from gtpool.pool import POOLS
    from gtpool.pool.gtpool import GTPool
    from gtpool.pool.select import SelectRWS, SelectRWSV
    from gtpool.predict import evaluate_source, predict_source
    from gtpool.spec import ModelSpec, ShapeSpec
    from gtpool.study.cross_validate import cross_validate

__version__ = "0.2.0"
__all__ = [
    "POOLS",
    "Classifier",
    "GTPool",
    "GraphClassifier",
    "GraphDataset",
    "GraphRegressor",
    "ModelSpec",
    "NodeDrop",
    "SelectRWS",
    "SelectRWSV",
    "ShapeSpec",
    "cross_validate",
    "evaluate_source",
    "load",
    "load_bundle",
    "predict_source",
    "save_bundle",
    "unpool",
]

_HOMES = {
    "POOLS": "gtpool.pool",
    "Classifier": "gtpool.model.classifier",
    "GTPool": "gtpool.pool.gtpool",
    "GraphClassifier": "gtpool.estimator",
    "GraphDataset": "gtpool.data.dataset",
    "GraphRegressor": "gtpool.estimator",
    "ModelSpec": "gtpool.spec",
    "NodeDrop": "gtpool.graph",
    "SelectRWS": "gtpool.pool.select",
    "SelectRWSV": "gtpool.pool.select",
    "ShapeSpec": "gtpool.spec",
    "cross_validate": "gtpool.study.cross_validate",
    "evaluate_source": "gtpool.predict",
    "load": "gtpool.data.sources",
    "load_bundle": "gtpool.model.bundle",
    "predict_source": "gtpool.predict",
    "save_bundle": "gtpool.model.bundle",
    "unpool": "gtpool.graph",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module on first access."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gtpool' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names too, for completion before they are imported."""
    return sorted({*globals(), *_HOMES})
