"""The protocol of the paper, by dataset; no torch."""

from dataclasses import replace

from gtpool.data.registry import DATASETS
from gtpool.model import WITH_BONDS
from gtpool.spec import OGB, TU, TrainSpec


def protocol(source: str) -> TrainSpec:
    """Say how a network is trained on a set known by name; others are trained as the TU sets are.

    Example:
        >>> protocol("ogbg-molhiv").batch_size, protocol("MUTAG").patience
        (512, 50)
    """
    if not _is_ogb(source):
        return TU
    return replace(OGB, batch_size=512) if source == "ogbg-molhiv" else OGB


def conv_for(source: str, conv: str) -> str:
    """Name the convolution to use: on OGB's sets the one that sees bonds.

    Example:
        >>> conv_for("ogbg-molbbbp", "gcn"), conv_for("MUTAG", "gcn")
        ('ogb-gcn', 'gcn')
    """
    return WITH_BONDS.get(conv, conv) if _is_ogb(source) else conv


def _is_ogb(source: str) -> bool:
    return source in DATASETS and DATASETS[source].family == "OGB"
