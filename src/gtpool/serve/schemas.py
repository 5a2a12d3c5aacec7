"""Pydantic models of request and response bodies."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gtpool.data.schema import FLOAT32_MAX, Task

_INT32 = 2**31 - 1

# fail_fast reports the first error: a list of all could make a very long response to a small body.
_Number = Annotated[float, Field(ge=-FLOAT32_MAX, le=FLOAT32_MAX)]
_Numbers = Annotated[list[_Number], Field(fail_fast=True)]
_Rows = Annotated[list[_Numbers], Field(fail_fast=True)]
_Label = Annotated[int, Field(ge=-_INT32, le=_INT32)]
_OneEach = Annotated[list[_Label], Field(fail_fast=True)]
_SeveralEach = Annotated[list[_OneEach], Field(fail_fast=True)]
_Labels = _OneEach | _SeveralEach
_End = Annotated[int, Field(ge=0, le=_INT32)]
_COVERAGE: Any = Field(
    None, gt=0, lt=1, description="Share of conformal sets or intervals that hold the truth."
)
_Edge = Annotated[list[_End], Field(min_length=2, max_length=2, fail_fast=True)]


class _Strict(BaseModel):
    """No type coercion, no unknown keys, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Graph(_Strict):
    """A graph in the format of JSON lines."""

    nodes: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    edges: Annotated[list[_Edge], Field(fail_fast=True)]
    undirected: bool | None = None
    node_features: _Rows | None = None
    node_labels: _Labels | None = None
    edge_features: _Rows | None = None
    edge_labels: _Labels | None = None
    edge_weights: _Numbers | None = None
    label: Any = Field(None, description="Ignored.")
    id: str | int | None = Field(None, description="Any name; the response repeats it.")


class PredictSmiles(_Strict):
    """Molecules, for a model that was trained on molecules."""

    smiles: str | Annotated[list[str], Field(min_length=1, fail_fast=True)] = Field(
        examples=["CCO", ["CCO", "c1ccccc1O"]]
    )
    coverage: float | None = _COVERAGE


class PredictGraphs(_Strict):
    """Graphs, for any other model."""

    graphs: Annotated[list[Graph], Field(min_length=1, fail_fast=True)]
    coverage: float | None = _COVERAGE


class ExplainSmiles(_Strict):
    """One molecule."""

    smiles: str = Field(examples=["CCO"])


class ExplainGraph(_Strict):
    """One graph."""

    graph: Graph


class Problem(BaseModel):
    """Why a request failed."""

    detail: str = Field(description="One line: what is wrong, and what to do.")
    where: str | None = Field(description="Location in the request, such as graphs[0].edges[5].")


class Prediction(BaseModel):
    """The prediction for one graph."""

    id: str = Field(description="The SMILES, or the id of the graph.")
    prediction: str | list[float] | None = Field(
        description="Class name, or a number for each target; null if there is no prediction."
    )
    probabilities: dict[str, float] | None = Field(
        description="Probability of each class, or that each target is 1; null for regression."
    )
    spread: dict[str, float] | None = Field(
        description="Standard deviation over the members of an ensemble, of each probability or "
        "value; null for a single network."
    )
    similarity: float | None = Field(
        None,
        description="Tanimoto similarity to the nearest training molecule, by Morgan fingerprints; "
        "only if the model stores these.",
    )
    note: str | None = Field(
        None, description="Several fragments, or far from all training molecules."
    )
    set: list[str] | dict[str, list[int]] | None = Field(
        None,
        description="With coverage: conformal set of classes, or of labels by target; null if "
        "there is no prediction.",
    )
    interval: dict[str, list[float | None]] | None = Field(
        None,
        description="With coverage, of a regression: lowest and highest value by target, null for "
        "no limit.",
    )
    reason: str | None = Field(description="Why there is no prediction, else null.")


class Predictions(BaseModel):
    """The predictions, in the order of the request."""

    task: Task
    targets: list[str] = Field(description="Names of the classes or targets.")
    predictions: list[Prediction]


class Level(BaseModel):
    """One pooling step; nodes have their indices in the graph of the request."""

    nodes: list[int] = Field(description="Nodes before the step; scores follow this order.")
    score: list[float | None]
    global_score: list[float | None] | None
    local_score: list[float | None] | None
    attention: list[float | None] | None = Field(
        description="Share of the kept nodes' attention on each node."
    )
    kept: list[int]
    topk: list[int] = Field(description="Nodes that top-k would keep for the same scores.")
    edges: list[list[int]]


class Fidelity(BaseModel):
    """Probability of the target, or its value, with and without the important nodes."""

    nodes: list[int] = Field(description="The more important half of the nodes.")
    without: float | None
    alone: float | None
    p: float | None


class Explanation(BaseModel):
    """Node importance, and the nodes that each pooling step kept."""

    target: int = Field(description="The explained class or target.")
    logits: list[float]
    nodes: int
    edges: list[list[int]]
    levels: list[Level]
    importance: list[float | None] | None
    fidelity: Fidelity | None
    member: int | None = Field(
        description="Member of the ensemble, from 0, whose levels and importance these are: the "
        "one nearest to the mean; null for a single network."
    )
    spread: float | None = Field(
        description="Standard deviation of the target over the members; null for a single network."
    )


class Explained(BaseModel):
    """A prediction and its explanation."""

    task: Task
    targets: list[str]
    prediction: Prediction
    explanation: Explanation
    pictures: list[str] = Field(
        description="SVG of the graph, then one for each pooling step with the kept nodes."
    )


class ModelLimits(BaseModel):
    """Limits of a request."""

    graphs: int
    nodes: int
    edges: int
    body_bytes: int


class Model(BaseModel):
    """The served model."""

    name: str = Field(description="The dataset that the model was trained on.")
    task: Task
    targets: list[str]
    target_columns: list[str] = Field(
        description="Columns of the training table that are predicted, such as that of the classes."
    )
    takes: Literal["smiles", "graphs"]
    smiles_columns: list[str] = Field(
        description="Columns of a CSV that the page reads SMILES from; the first that exists."
    )
    method: str
    metrics: dict[str, Any]
    scores: dict[str, Any] = Field(
        description="Mean of each metric over the test parts of the training; null if undefined."
    )
    versions: dict[str, Any]
    levels: int = Field(description="Number of pooling steps.")
    members: int = Field(description="Number of networks whose mean is the prediction.")
    network_weight: float = Field(
        description="Weight of the networks, from 0 to 1; below 1 in a blend with boosted trees."
    )
    temperature: list[float] = Field(
        description="Logits are divided by it, one for each target; empty if not calibrated."
    )
    threshold: list[float] = Field(
        description="Probability from which on a target is 1, or the second of two classes is "
        "predicted; empty for the most probable."
    )
    held_out: int = Field(
        description="Number of held-out graphs behind conformal sets and intervals; 0 for none."
    )
    limits: ModelLimits


class Health(BaseModel):
    """Health of the service."""

    status: Literal["ok"]
