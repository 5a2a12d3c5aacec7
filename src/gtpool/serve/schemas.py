"""What goes over the wire: the bodies of requests, which are checked by it, and of answers."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gtpool.data.schema import FLOAT32_MAX, Task

_INT32 = 2**31 - 1

# The first fault is told. To list them all would let a small body make a very long answer.
_Number = Annotated[float, Field(ge=-FLOAT32_MAX, le=FLOAT32_MAX)]
_Numbers = Annotated[list[_Number], Field(fail_fast=True)]
_Rows = Annotated[list[_Numbers], Field(fail_fast=True)]
_Label = Annotated[int, Field(ge=-_INT32, le=_INT32)]
_OneEach = Annotated[list[_Label], Field(fail_fast=True)]
_SeveralEach = Annotated[list[_OneEach], Field(fail_fast=True)]
_Labels = _OneEach | _SeveralEach
_End = Annotated[int, Field(ge=0, le=_INT32)]
_Edge = Annotated[list[_End], Field(min_length=2, max_length=2, fail_fast=True)]


class _Strict(BaseModel):
    """Takes a value for what it is, and no key that it does not know."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Graph(_Strict):
    """A graph, as a line of the format for JSON lines."""

    nodes: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    edges: Annotated[list[_Edge], Field(fail_fast=True)]
    undirected: bool | None = None
    node_features: _Rows | None = None
    node_labels: _Labels | None = None
    edge_features: _Rows | None = None
    edge_labels: _Labels | None = None
    edge_weights: _Numbers | None = None
    label: Any = Field(None, description="Not looked at.")
    id: str | int | None = Field(None, description="A name of yours; the answer repeats it.")


class PredictSmiles(_Strict):
    """Molecules, for a model that was trained on molecules."""

    smiles: str | Annotated[list[str], Field(min_length=1, fail_fast=True)] = Field(
        examples=["CCO", ["CCO", "c1ccccc1O"]]
    )


class PredictGraphs(_Strict):
    """Graphs, for any other model."""

    graphs: Annotated[list[Graph], Field(min_length=1, fail_fast=True)]


class ExplainSmiles(_Strict):
    """One molecule."""

    smiles: str = Field(examples=["CCO"])


class ExplainGraph(_Strict):
    """One graph."""

    graph: Graph


class Problem(BaseModel):
    """Why a request was turned away."""

    detail: str = Field(description="One line: what is wrong, and what to do.")
    where: str | None = Field(description="The place in the request, such as graphs[0].edges[5].")


class Prediction(BaseModel):
    """The answer to one graph."""

    id: str = Field(description="The SMILES, or the id of the graph.")
    prediction: str | list[float] | None = Field(
        description="The class by its name, or a number for each target; null where there is none."
    )
    probabilities: dict[str, float] | None = Field(
        description="Of each class, or that each target is 1; null for regression."
    )
    reason: str | None = Field(description="Why there is no prediction.")


class Predictions(BaseModel):
    """The answers, in the order of the request."""

    task: Task
    targets: list[str] = Field(description="Names of the classes, or of what is predicted.")
    predictions: list[Prediction]


class Level(BaseModel):
    """One pooling step; nodes go by their numbers in the graph that was sent."""

    nodes: list[int] = Field(description="Those before the step; scores follow this order.")
    score: list[float | None]
    global_score: list[float | None] | None
    local_score: list[float | None] | None
    attention: list[float | None] | None = Field(
        description="Share of the kept nodes' attention that falls on each node."
    )
    kept: list[int]
    topk: list[int] = Field(description="Those that top-k would have kept on the same scores.")
    edges: list[list[int]]


class Fidelity(BaseModel):
    """The probability of the target, or its value, with and without the nodes that count."""

    nodes: list[int] = Field(description="The more important half.")
    without: float | None
    alone: float | None
    p: float | None


class Explanation(BaseModel):
    """Which nodes count, and whom each pooling step kept."""

    target: int = Field(description="The class or target that is explained.")
    logits: list[float]
    nodes: int
    edges: list[list[int]]
    levels: list[Level]
    importance: list[float | None] | None
    fidelity: Fidelity | None


class Explained(BaseModel):
    """A prediction and why."""

    task: Task
    targets: list[str]
    prediction: Prediction
    explanation: Explanation
    pictures: list[str] = Field(
        description="SVG of the graph, then after each pooling step with its surviving nodes."
    )


class ModelLimits(BaseModel):
    """How much a request may ask for."""

    graphs: int
    nodes: int
    edges: int
    body_bytes: int


class Model(BaseModel):
    """What is served."""

    name: str = Field(description="The dataset that the model was trained on.")
    task: Task
    targets: list[str]
    takes: Literal["smiles", "graphs"]
    smiles_columns: list[str] = Field(
        description="Columns of a CSV that the page takes SMILES from, the first that is there."
    )
    method: str
    metrics: dict[str, Any]
    versions: dict[str, Any]
    levels: int = Field(description="Pooling steps.")
    limits: ModelLimits


class Health(BaseModel):
    """Whether the service works."""

    status: Literal["ok"]
