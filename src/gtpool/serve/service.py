"""The work of the service, without HTTP."""

import asyncio
import json
import math
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.molecule import atom_numbers
from gtpool.data.schema import Schema
from gtpool.explain import explain, name_nodes
from gtpool.model import method_name
from gtpool.model.bundle import Bundle
from gtpool.model.predictor import Predictor, members_of
from gtpool.predict import (
    OVERFLOW,
    Decoded,
    blend_members,
    compare_molecules,
    decode_outputs,
    finite_graphs,
    schema_of,
)
from gtpool.report.explanation import draw_survivors
from gtpool.serve.batch import Batcher
from gtpool.serve.limits import Limits, RequestError, too_busy
from gtpool.serve.metrics import Metrics
from gtpool.serve.request_reader import ParsedRequest, RequestReader
from gtpool.study.ordered_map import limit_kernel_cache

_Json = dict[str, Any]
_T = TypeVar("_T")

_DESCRIBED = 8  # molecules between two looks at the clock
_QUICK = 8  # graphs whose answer the event loop writes: less than handing it to a thread
_SHORT = 2048  # bytes of a body that waits for one thread: several would contend for the GIL
_TOGETHER = 16  # such bodies that are read at once; the first waits for the last
_READERS = 4  # threads for other bodies, so that a long list of molecules does not delay short ones


class Service:
    """A model with its queue and threads; the event loop awaits them.

    Args:
        bundle: A trained model, from ``load_bundle``.
        limits: Limits on requests.
        batch: Whether requests share forward passes.
        device: Device for predictions; explanations run on the CPU.
    """

    def __init__(
        self, bundle: Bundle, limits: Limits, *, batch: bool, device: torch.device
    ) -> None:
        limit_kernel_cache()
        self.limits, self.schema, self._bundle = limits, schema_of(bundle), bundle
        self.reader = RequestReader(bundle.model, self.schema, limits)
        _try(self.reader)
        self._about = _described(bundle, self.schema, self.reader.takes, limits)
        self._explaining = ExplanationWorker(
            bundle.model, self.schema, epochs=limits.explain_epochs
        )
        self.metrics = Metrics(
            lambda: self._in_hand,
            lambda: self._batcher.waiting(),  # noqa: PLW0108 - the batcher is made below
        )
        self._batcher = Batcher(
            bundle.model,
            graphs=limits.batch_graphs,
            nodes=limits.nodes,
            share=batch,
            on_batch=self.metrics.batch,
            device=device,
        )
        self._in_hand = 0
        self._to_explain = 0
        self._unread: deque[_Unread] = deque()
        one = torch.set_num_threads, (1,)  # one OpenMP thread for each of these
        self._reader = ThreadPoolExecutor(1, "gtpool-read-short", *one)
        self._readers = ThreadPoolExecutor(_READERS, "gtpool-read", *one)
        self._explainer = ThreadPoolExecutor(1, "gtpool-explain", *one)

    @contextmanager
    def admit(self) -> Generator[None]:
        """Count a request in progress; raise a RequestError if there are too many."""
        if self._in_hand >= self.limits.requests:
            raise too_busy("the queue is full")
        self._in_hand += 1
        try:
            yield
        finally:
            self._in_hand -= 1

    async def predict(self, body: bytes, deadline: float) -> bytes:
        """Return the JSON response to ``/predict``.

        Args:
            body: Body of the request.
            deadline: When the request times out, by ``monotonic``.
        """
        short = len(body) <= _SHORT
        with self._batcher.expect() if short else nullcontext():
            if short:
                question = await self._read_short(body, deadline)
            else:
                read = partial(self.reader.read_predict, body, deadline)
                question = await _in(self._readers, read)
            running = self._run(question)
        outputs = await running

        def answer() -> bytes:
            return _dumped(self._answered(question, outputs, deadline))

        quick = len(question.ids) <= _QUICK and self._bundle.blend is None
        return answer() if quick else await _in(self._readers, answer)

    async def explain(self, body: bytes, deadline: float) -> bytes:
        """Return the JSON response to ``/explain``.

        Args:
            body: Body of the request.
            deadline: When the request times out, by ``monotonic``.
        """
        if self._to_explain >= self.limits.explain_requests:
            raise too_busy("too many explanations are in progress")
        self._to_explain += 1
        try:
            question = await _in(self._readers, lambda: self.reader.read_explain(body, deadline))
            outputs = await self._run(question)
            answered = await _in(self._readers, lambda: self._answered(question, outputs, deadline))
            told = await _in(self._explainer, lambda: self._explain(question, deadline))
        finally:
            self._to_explain -= 1
        (answered["prediction"],) = answered.pop("predictions")
        return await _in(self._readers, lambda: _dumped({**answered, **told}))

    def about(self) -> _Json:
        """Return the content of ``/model``."""
        return self._about

    def stuck(self) -> bool:
        """Whether a forward pass has run for longer than the time limit of a request."""
        return self._batcher.busy_seconds() > self.limits.seconds

    def close(self) -> None:
        """Finish the queued requests, then stop all threads."""
        self._batcher.close()
        self._reader.shutdown()
        self._readers.shutdown()
        self._explainer.shutdown(cancel_futures=True)

    async def _read_short(self, body: bytes, deadline: float) -> ParsedRequest:
        """Read a body together with those that wait for the same thread."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._unread.append(_Unread(body, deadline, future))
        self._reader.submit(self._read_waiting, loop)
        return await future

    def _read_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting: list[_Unread] = []
        while self._unread and len(waiting) < _TOGETHER:
            one = self._unread.popleft()
            if not one.answer.done():  # the request timed out, or its client has gone
                waiting.append(one)
        if waiting:  # else an earlier call has read them
            deadline = max(one.deadline for one in waiting)
            found = self.reader.read_together([one.body for one in waiting], deadline)
            loop.call_soon_threadsafe(_settle, waiting, found)

    def _run(self, question: ParsedRequest) -> Awaitable[Tensor]:
        """Queue the graphs of a request; the outputs are those of ``Batcher.submit``."""
        if question.data is not None:
            return asyncio.wrap_future(self._batcher.submit(question.data, question.rows))
        nothing = asyncio.get_running_loop().create_future()
        nothing.set_result(torch.empty(0, 1, self.schema.num_outputs))
        return nothing

    def _answered(self, question: ParsedRequest, outputs: Tensor, deadline: float) -> _Json:
        """Return the content of ``/predict``; a single graph without prediction is a 422."""
        if self._bundle.blend is not None:
            outputs = self._blended(question, outputs, deadline)
        told = self._decode(question, outputs)
        rows = _rows(question, outputs, told, self.schema)
        if self._bundle.fingerprints is not None:
            self._compare(rows, deadline)
        if len(rows) == 1 and rows[0]["reason"] is not None:
            raise RequestError(422, rows[0]["reason"], question.places[0])
        schema = self.schema
        return {"task": schema.task, "targets": schema.targets, "predictions": rows}

    def _decode(self, question: ParsedRequest, outputs: Tensor) -> Iterator[Decoded]:
        """Return what the model says of each graph with finite outputs; a bad coverage is a 422."""
        calibration, coverage = self._bundle.calibration, question.coverage
        try:
            if coverage is not None:
                calibration.limits(coverage)
        except ValueError as error:
            raise RequestError(422, str(error), "coverage") from error
        return decode_outputs(self.schema, outputs[finite_graphs(outputs)], calibration, coverage)

    def _blended(self, question: ParsedRequest, outputs: Tensor, deadline: float) -> Tensor:
        """Return the outputs of a blend; the trees read the SMILES of a few graphs at a time."""
        smiles = [text for at, text in enumerate(question.ids) if at not in question.reasons]
        parts: list[Tensor] = []
        for at, part in enumerate(outputs.split(_DESCRIBED)):
            if monotonic() > deadline:
                raise TimeoutError
            with self.reader.rdkit:
                names = smiles[at * _DESCRIBED : (at + 1) * _DESCRIBED]
                parts.append(blend_members(self._bundle, part, names))
        return torch.cat(parts)

    def _compare(self, rows: list[_Json], deadline: float) -> None:
        """Add the similarity and the note of each row; null without a prediction."""
        for row in rows:
            row |= {"similarity": None, "note": None}
        sound = [row for row in rows if row["reason"] is None]
        for at in range(0, len(sound), _DESCRIBED):
            if monotonic() > deadline:
                raise TimeoutError
            part = sound[at : at + _DESCRIBED]
            with self.reader.rdkit:
                found = compare_molecules(self._bundle, [row["id"] for row in part])
            for row, near in zip(part, found, strict=True):
                row |= {"similarity": near.similarity, "note": near.note or None}

    def _explain(self, question: ParsedRequest, deadline: float) -> _Json:
        if question.data is None:
            raise ValueError("there is no graph to explain")
        smiles = question.ids[0] if self.reader.takes == "smiles" else None
        return self._explaining.explain(question.data, smiles, deadline)


class _Unread(NamedTuple):
    """A body that waits to be read."""

    body: bytes
    deadline: float
    answer: asyncio.Future[ParsedRequest]


def _settle(waiting: Sequence[_Unread], found: Sequence[ParsedRequest | Exception]) -> None:
    for one, result in zip(waiting, found, strict=True):
        if one.answer.done():
            continue
        if isinstance(result, Exception):
            one.answer.set_exception(result)
        else:
            one.answer.set_result(result)


def _try(reader: RequestReader) -> None:
    """Raise a ValueError if requests cannot have the model's features, such as custom codes."""
    try:
        reader.read_predict(_dumped({reader.takes: [reader.example()]}), math.inf)
    except RequestError as refusal:
        raise ValueError(f"this model cannot be served: {refusal.detail}") from refusal


async def _in(pool: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


def _dumped(value: _Json) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _described(bundle: Bundle, schema: Schema, takes: str, limits: Limits) -> _Json:
    return {
        "name": schema.name,
        "task": schema.task,
        "targets": schema.targets,
        "target_columns": list(bundle.part("data").get("target_columns") or ()),
        "takes": takes,
        "smiles_columns": _smiles_columns(bundle) if takes == "smiles" else [],
        "method": method_name(bundle.model.spec.to_json()),
        "metrics": bundle.part("metrics"),
        "scores": bundle.part("scores"),
        "versions": bundle.part("versions"),
        "levels": len(members_of(bundle.model)[0].pools),
        "members": len(members_of(bundle.model)),
        "network_weight": 1.0 if bundle.blend is None else bundle.blend.weight,
        "temperature": bundle.calibration.temperature,
        "threshold": bundle.calibration.threshold,
        "held_out": max(bundle.calibration.counts, default=0),
        "limits": {
            "graphs": limits.graphs,
            "nodes": limits.nodes,
            "edges": limits.edges,
            "body_bytes": limits.body_bytes,
        },
    }


def _smiles_columns(bundle: Bundle) -> list[str]:
    """Return the SMILES columns that the page looks for in a CSV, in order."""
    trained = bundle.part("run", "data").get("smiles_column")
    return list(dict.fromkeys([trained or "smiles", "smiles"]))


def _rows(
    question: ParsedRequest, outputs: Tensor, told: Iterator[Decoded], schema: Schema
) -> list[_Json]:
    """Return a prediction or a reason for each graph, in order."""
    sound = iter(finite_graphs(outputs).tolist())
    rows: list[_Json] = []
    for number, name in enumerate(question.ids):
        reason = question.reasons.get(number)
        if reason is None and not next(sound):
            reason = OVERFLOW
        said = Decoded() if reason is not None else next(told)
        chances, spread = (
            dict(zip(schema.targets, part, strict=True)) if part else None
            for part in (said.probabilities, said.spread)
        )
        row = {"id": name, "prediction": said.value, "probabilities": chances, "spread": spread}
        more = {} if question.coverage is None else _regions(said, schema)
        rows.append({**row, **more, "reason": reason})
    return rows


def _regions(said: Decoded, schema: Schema) -> _Json:
    """Return the conformal set or interval of a prediction, None where there is none."""
    kind = "interval" if schema.task == "regression" else "set"
    if not said.regions:
        return {kind: None}
    if schema.task == "classes":
        return {kind: said.regions[0]}
    return {kind: _finite(dict(zip(schema.targets, said.regions, strict=True)))}


class ExplanationWorker:
    """Explains one graph at a time; not thread-safe.

    Args:
        model: Copied, so that hooks do not affect predictions.
        schema: Schema of its training data.
        epochs: Training steps of the explainer.
    """

    def __init__(self, model: Predictor, schema: Schema, *, epochs: int) -> None:
        self._model, self._schema, self._epochs = deepcopy(model).cpu(), schema, epochs

    def explain(self, data: GraphDataset, smiles: str | None, deadline: float) -> dict[str, Any]:
        """Return ``explanation`` and ``pictures`` as JSON values.

        Args:
            data: One graph.
            smiles: SMILES of a molecule, else None.
            deadline: When to raise a TimeoutError, by ``monotonic``.
        """

        def check_deadline(*_: object) -> None:
            if monotonic() > deadline:
                raise TimeoutError

        order = self._schema.recipe.atom_order
        numbers = None if smiles is None else atom_numbers(smiles, order)
        hooks = [
            member.head.register_forward_pre_hook(check_deadline)
            for member in members_of(self._model)
        ]
        try:
            found = explain(
                self._model, data, epochs=self._epochs, task=self._schema.task, numbers=numbers
            )
        finally:
            for hook in hooks:
                hook.remove()
        names = name_nodes(data, numbers=numbers)
        pictures = draw_survivors(found, names, smiles=smiles)
        return {"explanation": _finite(found.to_json()), "pictures": pictures}


def _finite(value: Any) -> Any:  # noqa: ANN401
    """Return a value with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
