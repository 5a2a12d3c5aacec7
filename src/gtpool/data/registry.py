"""Datasets known by name. Does not import torch."""

from dataclasses import dataclass
from typing import Literal

from gtpool.spec import nearest

_TU = "https://www.chrsmrrs.com/graphkerneldatasets"
_TU_LICENCE = "none stated; public, cite Morris et al., TUDataset, 2020"
_OGB = "https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download"
_OGB_CITATION = (
    "Hu et al., Open Graph Benchmark, NeurIPS 2020; Wu et al., MoleculeNet, Chem. Sci. 9, 2018"
)
_BORGWARDT = "Borgwardt et al., Protein function prediction via graph kernels, Bioinformatics 2005"
_YANARDAG = "Yanardag and Vishwanathan, Deep graph kernels, KDD 2015"


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Statistics, licence and origin of a dataset."""

    family: Literal["TU", "OGB", "embedded", "synthetic"]
    graphs: int
    classes: int | None = None
    """Number of classes, for a classification dataset."""
    tasks: int | None = None
    """Number of binary tasks, for a multi-task dataset."""
    mean_nodes: float
    mean_edges: float
    """Undirected edges per graph."""
    licence: str
    citation: str
    url: str = ""
    """The archive, or the page of an embedded dataset; empty for a generated one."""
    sha256: str | None = None
    """Digest of the archive, if known."""
    folds_sha256: str | None = None
    """Digest of the GMT protocol's twenty index files, concatenated: train 1, test 1, train 2 …"""

    @property
    def outputs(self) -> str:
        """The number of classes or tasks, in words."""
        if self.tasks is None:
            return f"{self.classes} classes"
        return f"{self.tasks} tasks" if self.tasks > 1 else "1 task"


DATASETS: dict[str, DatasetInfo] = {
    "MUTAG": DatasetInfo(
        family="TU",
        graphs=188,
        classes=2,
        mean_nodes=17.93,
        mean_edges=19.79,
        licence=_TU_LICENCE,
        citation="Debnath et al., J. Med. Chem. 34, 786-797, 1991",
        url=f"{_TU}/MUTAG.zip",
        folds_sha256="5a4451ca5b7ffb0333a62e02a1a255397e37712f9be3390a317d97eef9792182",
    ),
    "ENZYMES": DatasetInfo(
        family="TU",
        graphs=600,
        classes=6,
        mean_nodes=32.63,
        mean_edges=62.14,
        licence=_TU_LICENCE,
        citation=f"{_BORGWARDT}; Schomburg et al., BRENDA, Nucleic Acids Research 32, 2004",
        url=f"{_TU}/ENZYMES.zip",
        folds_sha256="12cfb99993728ac89a4f95cfc2edc6e1f559a160e55fa0ef0f637f429dab907f",
    ),
    "PROTEINS": DatasetInfo(
        family="TU",
        graphs=1113,
        classes=2,
        mean_nodes=39.06,
        mean_edges=72.82,
        licence=_TU_LICENCE,
        citation=f"{_BORGWARDT}; Dobson and Doig, J. Mol. Biol. 330, 771-783, 2003",
        url=f"{_TU}/PROTEINS.zip",
        folds_sha256="ab889e1cf75d2a43281478892444a9f34469c53b977d1c7d6f7cb4e7a12a1eaf",
    ),
    "PTC_MR": DatasetInfo(
        family="TU",
        graphs=344,
        classes=2,
        mean_nodes=14.29,
        mean_edges=14.69,
        licence=_TU_LICENCE,
        citation="Helma et al., The predictive toxicology challenge, Bioinformatics 17, 2001",
        url=f"{_TU}/PTC_MR.zip",
        folds_sha256="2abc63696d48d623d50a23f333e7a9759beb705de8198222621e449b87efbd97",
    ),
    "Synthie": DatasetInfo(
        family="TU",
        graphs=400,
        classes=4,
        mean_nodes=95.00,
        mean_edges=172.93,
        licence=_TU_LICENCE,
        citation="Morris et al., Faster kernels for graphs with continuous attributes, ICDM 2016",
        url=f"{_TU}/Synthie.zip",
        folds_sha256="04c488da7f56badd39e0af6ee54371bebe0ae4483aa2390421b65e0c98e7298e",
    ),
    "IMDB-BINARY": DatasetInfo(
        family="TU",
        graphs=1000,
        classes=2,
        mean_nodes=19.77,
        mean_edges=96.53,
        licence=_TU_LICENCE,
        citation=_YANARDAG,
        url=f"{_TU}/IMDB-BINARY.zip",
        folds_sha256="f4f40773c1967db21ed9e323aba601ef6183f8f6010a75fa591fa5d8e571d283",
    ),
    "IMDB-MULTI": DatasetInfo(
        family="TU",
        graphs=1500,
        classes=3,
        mean_nodes=13.00,
        mean_edges=65.94,
        licence=_TU_LICENCE,
        citation=_YANARDAG,
        url=f"{_TU}/IMDB-MULTI.zip",
        folds_sha256="d1008fb3d8aba21c997022ec8dccfe7d6e1c331c5b6559b59e97e12b83282993",
    ),
    "ogbg-molhiv": DatasetInfo(
        family="OGB",
        graphs=41127,
        tasks=1,
        mean_nodes=25.51,
        mean_edges=27.47,
        licence="MIT",
        citation=_OGB_CITATION,
        url=f"{_OGB}/hiv.zip",
    ),
    "ogbg-moltox21": DatasetInfo(
        family="OGB",
        graphs=7831,
        tasks=12,
        mean_nodes=18.57,
        mean_edges=19.29,
        licence="MIT",
        citation=_OGB_CITATION,
        url=f"{_OGB}/tox21.zip",
    ),
    "ogbg-moltoxcast": DatasetInfo(
        family="OGB",
        graphs=8576,
        tasks=617,
        mean_nodes=18.78,
        mean_edges=19.26,
        licence="MIT",
        citation=_OGB_CITATION,
        url=f"{_OGB}/toxcast.zip",
    ),
    "ogbg-molbbbp": DatasetInfo(
        family="OGB",
        graphs=2039,
        tasks=1,
        mean_nodes=24.06,
        mean_edges=25.95,
        licence="MIT",
        citation=_OGB_CITATION,
        url=f"{_OGB}/bbbp.zip",
    ),
    "B3DB": DatasetInfo(
        family="embedded",
        graphs=7805,
        classes=2,
        mean_nodes=26.90,
        mean_edges=29.14,
        licence="CC0",
        citation="Meng et al., A curated diverse molecular database of blood-brain barrier "
        "permeability, Scientific Data 8, 289, 2021",
        url="https://github.com/theochem/B3DB",
    ),
    "long-range": DatasetInfo(
        family="synthetic",
        graphs=400,
        classes=2,
        mean_nodes=96.18,
        mean_edges=96.18,
        licence="MIT",
        citation="gtpool.data.synthetic.long_range, seed 0",
    ),
    "low-scores": DatasetInfo(
        family="synthetic",
        graphs=400,
        classes=2,
        mean_nodes=38.62,
        mean_edges=38.62,
        licence="MIT",
        citation="gtpool.data.synthetic.low_scores_matter, seed 0",
    ),
}


def dataset_info(name: str) -> DatasetInfo:
    """Return the entry of a dataset; the error for an unknown name suggests the nearest one.

    Example:
        >>> dataset_info("MUTAG").graphs
        188
        >>> dataset_info("mutag")
        Traceback (most recent call last):
        ...
        ValueError: no dataset 'mutag'; did you mean MUTAG? known are MUTAG, ENZYMES, ...
    """
    if name in DATASETS:
        return DATASETS[name]
    near = nearest(name, DATASETS)
    hint = "" if near is None else f"did you mean {near}? "
    raise ValueError(f"no dataset {name!r}; {hint}known are {', '.join(DATASETS)}")
