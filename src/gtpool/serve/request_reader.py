"""Parsing requests into graphs; errors name the place in the request."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from time import monotonic
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from gtpool.data.dataset import GraphDataset
from gtpool.data.features import RawGraphs
from gtpool.data.formats.reader import featurize_known
from gtpool.data.graph_features import apply_graph_features
from gtpool.data.inference import apply_recipe, check_fit
from gtpool.data.molecule import read_molecules
from gtpool.data.records import pack_records
from gtpool.data.schema import Recipe, Schema
from gtpool.model.predictor import Predictor
from gtpool.serve.batch import concatenate
from gtpool.serve.body import parse
from gtpool.serve.limits import Limits, RequestError
from gtpool.serve.schemas import ExplainGraph, ExplainSmiles, PredictGraphs, PredictSmiles

_Record = dict[str, Any]

_CHUNK = 8  # molecules between two checks of the request's size


class ParsedRequest(NamedTuple):
    """All graphs of a request, in order."""

    ids: tuple[str, ...]
    """SMILES or id of each graph."""
    places: tuple[str, ...]
    """Location of each graph in the request."""
    reasons: Mapping[int, str]
    """Why a graph cannot be predicted, by index."""
    data: GraphDataset | None
    """Holds the graphs without a reason; None if there are none."""
    coverage: float | None = None
    """Stated coverage of conformal sets or intervals; None for none."""
    rows: tuple[int, ...] | None = None
    """Indices of the graphs in ``data``, which other requests may share; None for all, in order."""


class RequestReader:
    """Parses requests for one model; thread-safe.

    Args:
        model: The model that the graphs are for.
        schema: Schema of its training data.
        limits: Limits of a request.
    """

    takes: Literal["smiles", "graphs"]

    def __init__(self, model: Predictor, schema: Schema, limits: Limits) -> None:
        self.takes = "smiles" if schema.recipe.kind == "molecule" else "graphs"
        self._recipe, self._limits = schema.recipe, limits
        self._shape, self._edges = model.shape, model.uses_edge_features
        # rdkit holds the GIL while it reads a molecule. With one reader at a time, other threads
        # get the GIL after at most one molecule.
        self.rdkit = Lock()

    def example(self) -> str | _Record:
        """Return an example: a SMILES, or a graph with all inputs of the model."""
        if self.takes == "smiles":
            return "CCO"
        recipe, record = self._recipe, dict[str, Any](nodes=2, edges=[[0, 1]], undirected=True)
        if recipe.attributes and not recipe.degree:
            record["node_features"] = [[0.0] * recipe.attributes] * 2
        if recipe.labels:
            record["node_labels"] = [_first(recipe.label_sets)] * 2
        if recipe.edge_weighted:
            record["edge_weights"] = [1.0]
        if recipe.edge_attributes > recipe.edge_weighted:
            record["edge_features"] = [[0.0] * (recipe.edge_attributes - recipe.edge_weighted)]
        if recipe.edge_labels:
            record["edge_labels"] = [_first(recipe.edge_label_sets)]
        return record

    def read_predict(self, body: bytes, deadline: float) -> ParsedRequest:
        """Parse the body of ``/predict``; raise a ``RequestError`` if it is invalid.

        Args:
            body: JSON with ``smiles`` or ``graphs``, depending on the model.
            deadline: When to raise a TimeoutError, by ``monotonic``.
        """
        if self.takes == "smiles":
            asked = parse(body, PredictSmiles)
            smiles, places = asked["smiles"], ("smiles",)
            if isinstance(smiles, str):
                smiles = [smiles]
            else:
                places = self._places("smiles", smiles)
            found = self._molecules(smiles, places, deadline)
        else:
            asked = parse(body, PredictGraphs)
            found = self._graphs(asked["graphs"], self._places("graphs", asked["graphs"]))
        return found._replace(coverage=asked.get("coverage"))

    def read_together(
        self, bodies: Sequence[bytes], deadline: float
    ) -> list[ParsedRequest | Exception]:
        """Parse bodies of ``/predict``; those with one SMILES share a dataset.

        A dataset costs about as much as reading a molecule.

        Args:
            bodies: As for ``read_predict``.
            deadline: When requests get a TimeoutError, by ``monotonic``.

        Returns:
            The parsed request or the error of each.
        """
        found: list[ParsedRequest | Exception | None] = [None] * len(bodies)
        single: dict[int, tuple[str, str, float | None]] = {}
        for at, body in enumerate(bodies):
            try:
                asked = parse(body, PredictSmiles) if self.takes == "smiles" else {}
                smiles = asked.get("smiles")
                given = [smiles] if isinstance(smiles, str) else smiles
                if given is not None and len(given) == 1:
                    place = "smiles" if isinstance(smiles, str) else "smiles[0]"
                    single[at] = given[0], place, asked.get("coverage")
                else:
                    found[at] = self.read_predict(body, deadline)
            except Exception as error:  # noqa: BLE001 - belongs to this request alone
                found[at] = error
        try:
            told = self._single_molecules([(text, place) for text, place, _ in single.values()])
            for (at, (_, _, coverage)), one in zip(single.items(), told, strict=True):
                found[at] = one if isinstance(one, Exception) else one._replace(coverage=coverage)
        except Exception:  # noqa: BLE001 - of which of them is not known
            for at in single:
                found[at] = self._read_alone(bodies[at], deadline)
        return [one for one in found if one is not None]

    def _read_alone(self, body: bytes, deadline: float) -> ParsedRequest | Exception:
        try:
            return self.read_predict(body, deadline)
        except Exception as error:  # noqa: BLE001 - belongs to this request alone
            return error

    def read_explain(self, body: bytes, deadline: float) -> ParsedRequest:
        """Parse the body of ``/explain``, one graph within the limits for explanations.

        Args:
            body: JSON with ``smiles`` or ``graph``, depending on the model.
            deadline: When to raise a TimeoutError, by ``monotonic``.
        """
        if self.takes == "smiles":
            smiles = parse(body, ExplainSmiles)["smiles"]
            found = self._molecules([smiles], ("smiles",), deadline)
        else:
            found = self._graphs([parse(body, ExplainGraph)["graph"]], ("graph",))
        if found.data is not None:
            size = (found.data.x.size(0), found.data.edge_index.size(1))
            most = (self._limits.explain_nodes, self._limits.explain_edges)
            if size[0] > most[0] or size[1] > most[1]:
                told = f"only graphs of up to {most[0]} nodes and {most[1]} edges are explained"
                raise RequestError(422, told, found.places[0])
        return found

    def _places(self, key: str, items: Sequence[object]) -> tuple[str, ...]:
        most = self._limits.graphs
        if len(items) > most:
            raise RequestError(
                422, f"more than {most} graphs; send several requests", f"{key}[{most}]"
            )
        return tuple(f"{key}[{number}]" for number in range(len(items)))

    def _molecules(
        self, smiles: Sequence[str], places: tuple[str, ...], deadline: float
    ) -> ParsedRequest:
        most = self._limits.smiles_characters
        said = {number: _unreadable(text, most) for number, text in enumerate(smiles)}
        reasons = {number: reason for number, reason in said.items() if reason is not None}
        left = [number for number in said if number not in reasons]
        parts: list[GraphDataset] = []
        nodes = edges = 0
        for at in range(0, len(left), _CHUNK):
            numbers = left[at : at + _CHUNK]
            batch = _until(deadline, (smiles[number] for number in numbers))
            with self.rdkit:
                found = read_molecules(batch, atom_order=self._recipe.atom_order)
            reasons |= {numbers[failure.position]: failure.reason for failure in found.failed}
            if found.sizes.numel():
                failed = {failure.position for failure in found.failed}
                known = [smiles[n] for place, n in enumerate(numbers) if place not in failed]
                empty = torch.empty(found.sizes.numel(), 0)
                part = found.to_dataset(empty, "the request", "regression", ())
                with self.rdkit:
                    parts.append(apply_graph_features(part, known, self._recipe))
                nodes, edges = nodes + found.x.size(0), edges + found.edge_index.size(1)
                self._check_size(nodes, edges, places[numbers[-1]])
        data = apply_recipe(concatenate(parts), self._recipe) if parts else None
        return ParsedRequest(tuple(smiles), places, reasons, data)

    def _single_molecules(
        self, asked: Sequence[tuple[str, str]]
    ) -> list[ParsedRequest | RequestError]:
        """Return requests for one molecule each, given its SMILES and its place."""
        most = self._limits.smiles_characters
        reasons = {at: _unreadable(text, most) for at, (text, _) in enumerate(asked)}
        left = [at for at, reason in reasons.items() if reason is None]
        with self.rdkit:
            found = read_molecules(
                [asked[at][0] for at in left], atom_order=self._recipe.atom_order
            )
            reasons |= {left[failure.position]: failure.reason for failure in found.failed}
            left, data = found.select_rows(left), None
            if left:
                part = found.to_dataset(torch.empty(len(left), 0), "the request", "regression", ())
                data = apply_graph_features(part, [asked[at][0] for at in left], self._recipe)
        data = None if data is None else apply_recipe(data, self._recipe)
        sizes = zip(found.sizes.tolist(), found.edge_counts.tolist(), strict=True)
        told: list[ParsedRequest | RequestError] = []
        for at, (text, place) in enumerate(asked):
            reason = reasons[at]
            if reason is not None:
                told.append(ParsedRequest((text,), (place,), {0: reason}, None))
                continue
            try:
                self._check_size(*next(sizes), place)
                told.append(ParsedRequest((text,), (place,), {}, data, rows=(left.index(at),)))
            except RequestError as error:
                told.append(error)
        return told

    def _graphs(self, records: Sequence[_Record], places: tuple[str, ...]) -> ParsedRequest:
        nodes = edges = 0
        for record, place in zip(records, places, strict=True):
            count = _count_nodes(record)
            nodes, edges = nodes + count, edges + _count_edges(record)
            self._check_size(nodes, edges, place)
            _check_ends(record["edges"], count, place)
        try:
            raw = pack_records(
                zip(places, map(_bare, records), strict=True), "the request", need_targets=False
            )
            reasons, data = self._features(_with_edge_columns(raw, self._recipe))
        except ValueError as error:
            raise _placed(str(error), places) from error
        names = (record.get("id") for record in records)
        ids = tuple("" if name is None else str(name) for name in names)
        return ParsedRequest(ids, places, reasons, data)

    def _features(self, raw: RawGraphs) -> tuple[dict[int, str], GraphDataset | None]:
        """Return reasons for graphs with unknown labels, and the other graphs with features."""
        reasons, data = featurize_known(raw, self._recipe)
        if data is not None:
            check_fit(data, self._shape, edges=self._edges)
        return reasons, data

    def _check_size(self, nodes: int, edges: int, place: str) -> None:
        for what, found, most in (
            ("nodes", nodes, self._limits.nodes),
            ("edges", edges, self._limits.edges),
        ):
            if found > most:
                raise RequestError(422, f"more than {most} {what} in one request", place)


def _first(known: tuple[tuple[int, ...], ...]) -> int | list[int]:
    """Return a label that the model knows, or one of each column."""
    first = [part[0] for part in known]
    return first[0] if len(first) == 1 else first


def _until(deadline: float, items: Iterable[str]) -> Iterator[str]:
    """Yield the items; raise a TimeoutError after the deadline."""
    for item in items:
        if monotonic() > deadline:
            raise TimeoutError
        yield item


def _unreadable(smiles: str, most: int) -> str | None:
    """Return why a SMILES is not passed to rdkit, or None."""
    if len(smiles) > most:
        return f"longer than {most} characters"
    return None if smiles.isascii() else "not a valid SMILES: it has characters beyond ASCII"


def _count_nodes(record: _Record) -> int:
    """Return the number of nodes of an unchecked graph; 0 if it is not given."""
    rows = (len(record.get(key) or ()) for key in ("node_features", "node_labels"))
    return max(record.get("nodes") or 0, *rows)


def _count_edges(record: _Record) -> int:
    return len(record["edges"]) * (2 if record.get("undirected") else 1)


def _check_ends(edges: Sequence[Sequence[int]], nodes: int, place: str) -> None:
    if edges and nodes:
        outside = (np.asarray(edges) >= nodes).any(1)
        if outside.any():
            at = int(outside.argmax())
            raise RequestError(
                422,
                f"edge {edges[at]} is out of range, the nodes are 0 to {nodes - 1}",
                f"{place}.edges[{at}]",
            )


def _bare(record: _Record) -> _Record:
    """Return a graph without its label, which is ignored, and without null values."""
    return {key: part for key, part in record.items() if key != "label" and part is not None}


def _with_edge_columns(raw: RawGraphs, recipe: Recipe) -> RawGraphs:
    """Return graphs without any edge with empty edge labels and attributes, as the model needs."""
    if raw.edge_index.size(1):
        return raw
    columns = len(recipe.edge_label_sets)
    shape = (0,) if columns == 1 else (0, columns)
    return raw._replace(
        edge_labels=torch.empty(shape, dtype=torch.long) if columns else None,
        edge_attributes=torch.empty(0, recipe.edge_attributes) if recipe.edge_attributes else None,
    )


def _placed(message: str, places: Sequence[str]) -> RequestError:
    """Return an error with the place that a message starts with, else the whole request."""
    place, colon, rest = message.partition(": ")
    if colon and place in places:
        return RequestError(422, rest, place)
    return RequestError(422, message, places[0].partition("[")[0])
