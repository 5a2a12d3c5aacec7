"""GraphDataset: many graphs packed into a few tensors, from which batches are gathered."""

import ctypes
import json
import mmap
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch_geometric.data import Data

from gtpool.atomic import new_folder, recover_folder
from gtpool.data.schema import FLOAT32_MAX, Recipe, Schema
from gtpool.graph import CoarseningStep, PackedBatch
from gtpool.ops.average import standardize
from gtpool.ops.coarsening import edge_pointers, row_ranges, take_chain
from gtpool.ops.sample import kept_counts
from gtpool.ops.segment import layout_from_sizes, offsets

_WHOLE = (torch.int64, torch.int32)
_SAVED = ("x", "edge_index", "sizes", "edge_counts", "y")
_OPTIONAL = ("edge_attr", "graph_features")
_ADVICE = {"MADV_RANDOM": 1, "MADV_WILLNEED": 3}  # Linux's numbers
_CHECKED = 1 << 20  # values or edges that are checked at once: data may be larger than memory
_FORMAT = 1
_TENSORS, _SCHEMA = "graphs.safetensors", "schema.json"


@dataclass(frozen=True, eq=False)
class GraphDataset:
    """Labelled graphs, packed: one tensor holds the nodes of all graphs, another all edges.

    Integer features are stored in the smallest type that holds them; batches have int64.

    Example:
        >>> ring = Data(torch.ones(3, 1), torch.tensor([[0, 1, 2], [1, 2, 0]]), y=torch.tensor([0]))
        >>> data = GraphDataset.from_pyg([ring, ring, ring])
        >>> batch = data.take([2, 0], ratios=[0.5])
        >>> batch.edge_index.tolist()
        [[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]]
        >>> [level.sizes.tolist() for level in batch.levels]
        [[3, 3], [2, 2]]
    """

    x: Tensor
    """Node features: structural encodings, attributes, then labels or codes, [N, D]."""
    edge_index: Tensor
    """Edges, numbered inside their graph, int32 [2, E]."""
    edge_attr: Tensor | None
    """Edge features, [E, F]."""
    sizes: Tensor
    """Nodes of each graph, at least one, on the CPU, [G]."""
    edge_counts: Tensor
    """Edges of each graph, on the CPU, [G]."""
    y: Tensor
    """Class of each graph, int64 [G], or one float per task, NaN where missing, [G, T]."""
    schema: Schema
    chain: tuple[CoarseningStep, ...] = ()
    """Coarsening steps of all graphs as one batch; see ``gtpool.data.coarsening.with_chain``."""
    graph_features: Tensor | None = None
    """Features of each graph, as read, NaN where missing, float32 [G, D]."""
    mapped: bool = False
    """Whether the graphs are read from a file when they are needed."""
    node_ptr: Tensor = field(init=False)
    """First node of each graph, and the number of nodes, on the CPU, [G + 1]."""
    edge_ptr: Tensor = field(init=False)
    """First edge of each graph, and the number of edges, on the CPU, [G + 1]."""
    chain_edge_ptrs: tuple[Tensor, ...] = field(init=False)
    """The same for the edges between clusters, after each step."""

    def __post_init__(self) -> None:
        """Raise a ValueError if the tensors do not fit together."""
        _check_dataset(self)
        object.__setattr__(self, "node_ptr", offsets(self.sizes))
        object.__setattr__(self, "edge_ptr", offsets(self.edge_counts))
        if self.chain and self.chain[0].cluster.numel() != self.x.size(0):
            raise ValueError(f"{self.schema.name}: the chain belongs to other graphs")
        object.__setattr__(self, "chain_edge_ptrs", edge_pointers(self.chain))

    def __len__(self) -> int:
        """Return the number of graphs."""
        return self.sizes.numel()

    @property
    def num_features(self) -> int:
        """Number of columns of ``x``."""
        return self.x.size(1)

    def take(self, indices: Sequence[int] | Tensor, ratios: Sequence[float] = ()) -> PackedBatch:
        """Return a batch of graphs, on the device of the dataset.

        Args:
            indices: Indices of the graphs, in order.
            ratios: Share of nodes kept by each pooling step; the layout after each is planned.
        """
        index, device = self._index(indices), self.x.device
        levels = [layout_from_sizes(self.sizes.index_select(0, index), device)]
        for ratio in ratios:
            levels.append(layout_from_sizes(kept_counts(levels[-1].sizes, ratio), device))
        nodes = row_ranges(self.node_ptr.index_select(0, index), levels[0])
        edge_plan = layout_from_sizes(self.edge_counts.index_select(0, index), device)
        edges = row_ranges(self.edge_ptr.index_select(0, index), edge_plan)
        # Row by row: torch gathers from a vector twice as fast as from the columns of a matrix.
        ends = torch.stack([row.index_select(0, edges) for row in self.edge_index])
        first = levels[0].ptr[:-1].int().to(device, non_blocking=True)
        own, features = index.to(device, non_blocking=True), self.graph_features
        return PackedBatch(
            _widen(self.x.index_select(0, nodes)),
            ends.add_(first.index_select(0, edge_plan.batch)).long(),
            None if self.edge_attr is None else _widen(self.edge_attr.index_select(0, edges)),
            self.y.index_select(0, own),
            tuple(levels),
            take_chain(self.chain, self.chain_edge_ptrs, index, levels[0], nodes),
            None if features is None else features.index_select(0, own),
        )

    def prefetch(self, indices: Sequence[int] | Tensor) -> None:
        """Read the graphs of a coming batch in the background, if they are in a file (Linux)."""
        if not self.mapped or self.x.is_cuda or len(indices) == 0:
            return
        index = self._index(indices)
        nodes, edges = (
            [ptr.index_select(0, index + end) for end in (0, 1)]
            for ptr in (self.node_ptr, self.edge_ptr)
        )
        _read_ahead(self.x, *nodes)
        for part in (*self.edge_index, self.edge_attr):
            if part is not None:
                _read_ahead(part, *edges)

    def to(self, device: torch.device | str) -> Self:
        """Return the dataset on a device; sizes, counts and pointers stay on the CPU."""
        return replace(
            self,
            x=self.x.to(device),
            edge_index=self.edge_index.to(device),
            edge_attr=None if self.edge_attr is None else self.edge_attr.to(device),
            y=self.y.to(device),
            chain=tuple(step.to(device) for step in self.chain),
            graph_features=None if self.graph_features is None else self.graph_features.to(device),
        )

    def standardized(self, train: Sequence[int] | Tensor) -> Self:
        """Return the dataset with continuous node features standardised.

        Args:
            train: Indices of the graphs whose nodes give mean and standard deviation; the recipe
                stores both.
        """
        columns = self.schema.recipe.continuous
        if columns == 0 or self.schema.recipe.mean is not None:
            return self
        index = self._index(train)
        nodes = row_ranges(
            self.node_ptr[index], layout_from_sizes(self.sizes[index], self.x.device)
        )
        seen = self.x[:, :columns].index_select(0, nodes).double()
        # The deviation of a constant column is rounding error: do not divide by it.
        varies = seen.amin(0) < seen.amax(0)
        std = torch.where(varies, seen.std(0, correction=0), 1.0)
        recipe = replace(
            self.schema.recipe, mean=tuple(seen.mean(0).tolist()), std=tuple(std.tolist())
        )
        x = standardize_columns(self.x, recipe)
        return replace(self, x=x, schema=replace(self.schema, recipe=recipe))

    @classmethod
    def from_pyg(cls, graphs: Iterable[Data], schema: Schema | None = None) -> Self:
        """Pack PyG graphs; only ``x``, ``edge_index``, ``edge_attr`` and ``y`` are kept.

        A 1-D feature tensor becomes one column. Integers come back as int64, floats unchanged.

        Args:
            graphs: Each with ``x`` and ``y``: a class index, or a row with one number per task.
            schema: What the tensors mean. By default a single integer is a class; rows of 0, 1 and
                NaN are binary tasks; other numbers are regression targets.
        """
        graphs = list(graphs)
        if not graphs:
            raise ValueError("there are no graphs to pack")
        kept = {"x", "edge_index", "edge_attr", "y"}
        for number, graph in enumerate(graphs):
            extra = sorted(set(graph.keys()) - kept - {"num_nodes"})
            missing = sorted({"x", "y"} - set(graph.keys()))
            if extra or missing:
                fault = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(extra)} too"
                raise ValueError(
                    f"graph {number} {fault}; a dataset keeps x, edge_index, edge_attr, y"
                )
        empty = torch.empty(2, 0, dtype=torch.long)
        joins = [empty if graph.edge_index is None else graph.edge_index for graph in graphs]
        for number, join in enumerate(joins):
            whole = not join.is_floating_point() and join.dtype != torch.bool
            if join.shape[:-1] != (2,) or (join.numel() and not whole):
                raise ValueError(
                    f"graph {number}: edge_index must be integers of shape [2, edges], "
                    f"got {join.dtype} of shape {list(join.shape)}"
                )
        x = _stacked("x", [graph["x"] for graph in graphs])
        y = _stacked("y", [torch.as_tensor(graph["y"]).view(1, -1) for graph in graphs])
        if not y.is_floating_point():
            y = y.long().flatten() if y.size(1) == 1 else y.float()
        edge_attr = None
        if any("edge_attr" in graph for graph in graphs):
            edge_attr = _stacked("edge_attr", [graph.edge_attr for graph in graphs])
        return cls(
            to_smallest_int(x),
            edges_to_int32(torch.cat([join.long() for join in joins], 1)),
            None if edge_attr is None else to_smallest_int(edge_attr),
            torch.tensor([graph["x"].size(0) for graph in graphs]),
            torch.tensor([join.size(1) for join in joins]),
            y,
            schema or _guessed_schema(x, y),
        )

    def to_pyg(self) -> list[Data]:
        """Return a list of PyG graphs, the inverse of ``from_pyg``."""
        sizes, edges = self.sizes.tolist(), self.edge_counts.tolist()
        attrs = [None] * len(self) if self.edge_attr is None else self.edge_attr.split(edges)
        parts = zip(
            _widen(self.x).split(sizes),
            self.edge_index.long().split(edges, 1),
            attrs,
            self.y.split(1),
            strict=True,
        )
        return [
            Data(x, edge_index, None if attr is None else _widen(attr), y)
            for x, edge_index, attr, y in parts
        ]

    def save(self, folder: Path) -> None:
        """Write ``graphs.safetensors`` and ``schema.json`` into a folder, atomically.

        An existing dataset is replaced; a folder with any other file is an error.
        """
        tensors = {name: getattr(self, name) for name in (*_SAVED, *_OPTIONAL)}
        kept = {name: part for name, part in tensors.items() if part is not None}
        write_folder(folder, kept, self.schema.to_json())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load a dataset from a folder that ``save`` wrote; tensors are memory-mapped."""
        tensors, saved = read_folder(folder)
        try:
            x, edge_index, sizes, edge_counts, y = (tensors[name] for name in _SAVED)
            edge_attr, features = (tensors.get(name) for name in _OPTIONAL)
            parts = (x, edge_index, edge_attr, sizes, edge_counts, y, Schema.from_json(saved))
            data = cls(*parts, graph_features=features, mapped=True)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{folder} does not hold a sound dataset ({error}); delete it and save it again"
            ) from error
        # After the checks, which read in order.
        _read_pages_alone(part for part in (x, edge_index, edge_attr) if part is not None)
        return data

    def _index(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return checked indices of graphs on the CPU, [B]."""
        index = torch.as_tensor(indices, device="cpu")
        if index.dim() != 1 or index.numel() == 0 or index.dtype not in _WHOLE:
            raise ValueError("indices must be a non-empty list of integers")
        low, high = (int(end) for end in index.aminmax())
        if low < 0 or high >= len(self):
            wrong = low if low < 0 else high
            raise ValueError(f"there is no graph {wrong}: the graphs are 0 to {len(self) - 1}")
        return index.long()


def standardize_columns(x: Tensor, recipe: Recipe) -> Tensor:
    """Return ``x`` with its continuous columns standardised by the statistics of a recipe."""
    if recipe.mean is None or recipe.std is None:
        return x
    parts = (recipe.mean, recipe.std)
    return standardize(x, *(torch.tensor(part, dtype=torch.double).to(x.device) for part in parts))


def to_smallest_int(codes: Tensor) -> Tensor:
    """Return integers in the smallest dtype that holds them; floats are unchanged."""
    if codes.is_floating_point():
        return codes
    codes = codes.long()
    low, high = (int(codes.min()), int(codes.max())) if codes.numel() else (0, 0)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max:
            return codes.to(dtype)
    return codes


def edges_to_int32(edge_index: Tensor) -> Tensor:
    """Return node indices as int32; larger ones stay int64, which the dataset's check rejects."""
    narrowed = edge_index.int()
    return narrowed if torch.equal(narrowed.to(edge_index.dtype), edge_index) else edge_index


def _widen(value: Tensor) -> Tensor:
    return value if value.is_floating_point() else value.long()


def _stacked(name: str, parts: list[Tensor | None]) -> Tensor:
    """Concatenate matrices; raise a ValueError that names the first of another width or dtype."""
    rows = [None if part is None else part.unsqueeze(-1).flatten(1) for part in parts]
    kinds = [None if row is None else (row.size(1), row.dtype) for row in rows]
    if len(set(kinds)) > 1:
        at = next(number for number, kind in enumerate(kinds) if kind != kinds[0])
        first, other = (
            "none" if kind is None else f"{kind[0]} columns of {kind[1]}"
            for kind in (kinds[0], kinds[at])
        )
        raise ValueError(f"all graphs must have alike {name}: graph 0 has {first}, {at} {other}")
    return torch.cat([row for row in rows if row is not None])


def _guessed_schema(x: Tensor, y: Tensor) -> Schema:
    """Infer the task: integers are classes; 0, 1 and NaN binary tasks; other floats regression."""
    recipe = Recipe("given", attributes=x.size(1) if x.is_floating_point() else 0)
    if not y.is_floating_point():
        return Schema("graphs", "classes", tuple(map(str, range(int(y.max()) + 1))), recipe)
    task = "binary" if bool(((y == 0) | (y == 1) | y.isnan()).all()) else "regression"
    return Schema("graphs", task, tuple(f"task {i + 1}" for i in range(y.size(1))), recipe)


def _check_dataset(data: GraphDataset) -> None:
    """Raise a ValueError that names the graph if the tensors do not fit together."""
    graphs = data.sizes.numel()
    if graphs == 0:
        raise ValueError(f"{data.schema.name} has no graphs")
    if int(data.sizes.min()) < 1:
        raise ValueError(f"graph {int(data.sizes.argmin())} of {data.schema.name} has no nodes")
    for name, rows, expected in (
        ("x", data.x.size(0), int(data.sizes.sum())),
        ("edge_counts", data.edge_counts.numel(), graphs),
        ("edge_index", data.edge_index.size(1), int(data.edge_counts.sum())),
        ("y", data.y.size(0), graphs),
        (
            "edge_attr",
            None if data.edge_attr is None else data.edge_attr.size(0),
            data.edge_index.size(1),
        ),
    ):
        if rows not in (None, expected):
            raise ValueError(f"{data.schema.name}: {name} has {rows} rows, expected {expected}")
    _check_edges(data)
    _check_finite(data)
    _check_targets(data)
    _check_graph_features(data)


def _check_edges(data: GraphDataset) -> None:
    ends = data.edge_counts.cumsum(0)
    for start in range(0, data.edge_index.size(1), _CHECKED):
        edges = data.edge_index[:, start : start + _CHECKED].cpu()
        low, high = (
            int(torch.searchsorted(ends, at, right=True))
            for at in (start, start + edges.size(1) - 1)
        )
        counts = data.edge_counts[low : high + 1].clone()
        counts[0] = ends[low] - start
        counts[-1] -= ends[high] - start - edges.size(1)
        graph = torch.arange(low, high + 1).repeat_interleave(counts)
        outside = ((edges < 0) | (edges >= data.sizes[graph])).any(0)
        if outside.any():
            at = int(outside.nonzero()[0])
            raise ValueError(
                f"graph {int(graph[at])} of {data.schema.name} has nodes 0 to "
                f"{int(data.sizes[graph[at]]) - 1}, but an edge {edges[:, at].tolist()}"
            )


def _check_graph_features(data: GraphDataset) -> None:
    names, features = data.schema.recipe.graph_columns, data.graph_features
    shape = None if features is None else list(features.shape)
    if shape != ([len(data), len(names)] if names else None):
        raise ValueError(
            f"{data.schema.name}: graph_features has the shape {shape}, and its recipe names "
            f"{len(names)} columns for {len(data)} graphs"
        )
    if features is not None and features.isinf().any():
        graph, column = features.isinf().nonzero()[0].tolist()
        raise ValueError(f"graph {graph} of {data.schema.name}: {names[column]!r} is infinite")


def _check_finite(data: GraphDataset) -> None:
    for value, counts in ((data.x, data.sizes), (data.edge_attr, data.edge_counts)):
        if value is None or not value.is_floating_point():
            continue
        rows = max(1, _CHECKED // max(1, value.size(1)))
        for start in range(0, value.size(0), rows):
            finite = value[start : start + rows].isfinite().all(1)
            if not finite.all():
                row = start + int((~finite).nonzero()[0])
                graph = int(torch.searchsorted(counts.cumsum(0), row, right=True))
                raise ValueError(
                    f"graph {graph} of {data.schema.name} has features that are not finite"
                )


def _check_targets(data: GraphDataset) -> None:
    names = data.schema.num_outputs
    if data.schema.task == "classes":
        wrong = (data.y < 0) | (data.y >= names)
        if wrong.any():
            graph = int(wrong.nonzero()[0])
            raise ValueError(
                f"graph {graph} of {data.schema.name} has class {int(data.y[graph])}, "
                f"but the classes are 0 to {names - 1}"
            )
        return
    if data.y.shape != (len(data), names):
        raise ValueError(
            f"{data.schema.name} names {names} tasks, but y is of shape {list(data.y.shape)}"
        )
    wrong = data.y.abs() > FLOAT32_MAX  # NaN is a missing target
    if wrong.any():
        graph, task = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"graph {graph} of {data.schema.name} has the target {data.y[graph, task].item()} for "
            f"{data.schema.targets[task]!r}; targets must be finite in float32"
        )


def write_folder(folder: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write ``graphs.safetensors`` and ``schema.json``, replacing existing ones.

    A folder with any other file is an error.
    """
    text = json.dumps({"format": _FORMAT, **values}, indent=1)
    with new_folder(folder, (_TENSORS, _SCHEMA), "a dataset") as made:
        save_file(
            {name: part.cpu().contiguous() for name, part in tensors.items()}, made / _TENSORS
        )
        (made / _SCHEMA).write_text(text, encoding="utf-8")


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors (memory-mapped) and the values that ``write_folder`` wrote."""
    if not folder.exists():
        recover_folder(folder)
    try:
        values = json.loads((folder / _SCHEMA).read_text(encoding="utf-8"))
        tensors = load_file(folder / _TENSORS)
    except (ValueError, RecursionError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged ({error}); delete it and save it again") from error
    except RuntimeError as error:  # torch cannot open a file that another process has just replaced
        raise OSError(f"cannot read {folder}: {error}") from error
    if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
        raise ValueError(f"another version wrote {folder}; delete it and save it again")
    return tensors, values


def _read_pages_alone(tensors: Iterable[Tensor]) -> None:
    """Have Linux read mapped tensors by the page; else it reads up to megabytes around each row."""
    for part in tensors:
        _advise(part.data_ptr(), part.nbytes, "MADV_RANDOM")


def _read_ahead(tensor: Tensor, starts: Tensor, ends: Tensor) -> None:
    """Have Linux read ranges of rows of a mapped tensor in the background.

    Args:
        tensor: A contiguous tensor.
        starts: First row of each range.
        ends: The row after each range.
    """
    first, row = tensor.data_ptr(), tensor.stride(0) * tensor.element_size()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        _advise(first + start * row, (end - start) * row, "MADV_WILLNEED")


def _advise(address: int, size: int, advice: str) -> None:
    if size and (libc := _libc()) is not None:
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        libc.madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(address + size - start), _ADVICE[advice]
        )


@cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
