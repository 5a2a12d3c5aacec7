"""The read-outs of a stack of classifiers, as each of them does it alone."""

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, pad

from gtpool.fixed import Links, Rows
from gtpool.model.gmt import GMT
from gtpool.model.set2set import Set2Set
from gtpool.model.sortpool import SortPool
from gtpool.model.stack_maps import Maps
from gtpool.ops import static
from gtpool.ops.static_reads import highest, products, softmax


class Reads(Maps):
    """From the rows of each graph to one vector a graph."""

    def _read_out(self, number: int, x: Tensor, links: Links, rows: Rows) -> Tensor:
        """Read out all places for graphs, [RN, D] -> [RG, out_channels]."""
        read, name = self.stack.readouts[number], f"readouts.{number}"
        if isinstance(read, Set2Set):
            return self._ask(read, name, x, rows)
        if isinstance(read, SortPool):
            return self._read_in_order(read, name, x, rows)
        if isinstance(read, GMT):
            return self._read_by_seeds(read, name, x, links, rows)
        plain = {"mean": static.mean, "max": static.maximum, "sum": static.total}
        return plain.get(self.stack.spec.readout, self.steps.mean_max)(x, rows)

    def _ask(self, read: Set2Set, name: str, x: Tensor, rows: Rows) -> Tensor:
        """Read out as ``Set2Set`` does; q is the LSTM's state and the first half of its input."""
        graphs, width = rows.size.numel(), x.size(1)
        lstm, weights = f"{name}.ask.lstm", self.weights
        of_state = pad(weights[f"{lstm}.weight_hh_l0"], (0, width))
        weight = weights[f"{lstm}.weight_ih_l0"] + of_state
        bias = weights[f"{lstm}.bias_ih_l0"] + weights[f"{lstm}.bias_hh_l0"]
        # Padding asks a row of zeros, and not another run, which may have gone wrong.
        x = torch.where((rows.batch < graphs).unsqueeze(1), x, 0.0)
        query = answer = cell = x.new_zeros(graphs, width)
        for _ in range(read.steps):
            gates = self._multiply(torch.cat([query, answer], 1), weight)
            enter, stay, new, leave = self._each(gates, torch.add, bias).chunk(4, 1)
            cell = stay.sigmoid() * cell + enter.sigmoid() * new.tanh()
            query = leave.sigmoid() * cell.tanh()  # (3)
            asked = torch.cat([query, torch.zeros_like(query[:1])]).index_select(0, rows.batch)
            share = softmax((x * asked).sum(1), rows)  # (4), (5)
            answer = static.total(x * share.unsqueeze(1), rows)  # (6)
        return torch.cat([query, answer], 1)  # (7)

    def _read_in_order(self, read: SortPool, name: str, x: Tensor, rows: Rows) -> Tensor:
        """Read out as ``SortPool`` does, the second convolution as a map of its windows."""
        ordered = highest(x, read.nodes, rows, self.stack.runs)  # [RG, k, D]
        h = self._linear(f"{name}.each", ordered.flatten(0, 1)).relu()
        h = max_pool1d(h.unflatten(0, (-1, read.nodes)).mT, 2)
        windows = h.unfold(2, read.kernel, 1).transpose(1, 2)  # [RG, places, filters[0], kernel]
        weight = self.weights[f"{name}.along.weight"].flatten(2)
        h = self._multiply(windows.flatten(2).flatten(0, 1), weight)
        h = self._add(h, f"{name}.along.bias").relu()
        return h.unflatten(0, windows.shape[:2]).mT.flatten(1)

    def _read_by_seeds(self, read: GMT, name: str, x: Tensor, links: Links, rows: Rows) -> Tensor:
        """Read out as ``GMT`` does; one query takes all of the values."""
        h = self._gather(read, name, x, links, rows)
        h = self._mix(read, f"{name}.mix", h, rows.size.numel())
        seed = self._linear(f"{name}.total.query", self.weights[f"{name}.seed"].flatten(0, 1))
        value = self._linear(f"{name}.total.value", h).unflatten(0, (rows.size.numel(), -1))
        taken = self._each(value.sum(1), torch.add, seed)
        return self._linear(f"{name}.project", self._feed(read, f"{name}.total", taken))

    def _gather(self, read: GMT, name: str, x: Tensor, links: Links, rows: Rows) -> Tensor:
        """Let the seeds share the rows of each graph, [RN, in_channels] -> [RG k, in_channels]."""
        seeds, name = self.weights[f"{name}.seeds"], f"{name}.gather"  # [R, k, in_channels]
        query = self._linear(f"{name}.query", seeds.flatten(0, 1)).view_as(seeds)
        near = self.steps.gcn_sum(x, self.steps.root_degrees(links, x), links)
        value = self._after_sum(f"{name}.value", near)
        if read.gather.key is None:
            taken = static.total(value, rows).unsqueeze(1)
        else:
            key = self._after_sum(f"{name}.key", near).unflatten(0, (self.stack.runs, -1))
            share = _shares(query, key, read.heads).transpose(1, 2).flatten(0, 1)  # [RN, H, k]
            taken = products(share, value.unflatten(1, (read.heads, -1)), rows)
            taken = taken.transpose(1, 2).flatten(2)
        taken = self._each(taken, torch.add, query)  # [RG, k, in_channels]
        return self._feed(read, name, taken.flatten(0, 1))

    def _mix(self, read: GMT, name: str, h: Tensor, graphs: int) -> Tensor:
        """Let the seeds share each other, [RG k, in_channels] -> [RG k, width]."""
        query, value = (self._linear(f"{name}.{part}", h) for part in ("query", "value"))
        if read.mix.key is None:
            return self._feed(read, name, query + value)
        key = self._linear(f"{name}.key", h)
        query, key, value = (part.unflatten(0, (graphs, -1)) for part in (query, key, value))
        share = _shares(query, key, read.heads)
        taken = (share.mT @ _split(value, read.heads)).transpose(1, 2).flatten(2)
        return self._feed(read, name, (query + taken).flatten(0, 1))

    def _gcn(self, name: str, x: Tensor, scale: Tensor, links: Links) -> Tensor:
        """Convolve as a GCN, given ``root_degrees``; sum over the narrower of input and output."""
        weight = self.weights[f"{name}.lin.weight"]
        if weight.size(2) <= weight.size(1):
            return self._after_sum(name, self.steps.gcn_sum(x, scale, links))
        x = self._multiply(x, weight)
        return self._add(self.steps.gcn_sum(x, scale, links), f"{name}.bias")

    def _after_sum(self, name: str, near: Tensor) -> Tensor:
        """Do what a GCN does with the sums over neighbours."""
        return self._map(near, self.weights[f"{name}.lin.weight"], self.weights[f"{name}.bias"])

    def _feed(self, read: GMT, name: str, z: Tensor) -> Tensor:
        """Do what a block of ``GMT`` does with queries and what they took."""
        if read.layer_norm:
            z = self._layer_norm(f"{name}.inner", z)
        z = z + self._linear(f"{name}.feed", z).relu()
        return self._layer_norm(f"{name}.outer", z) if read.layer_norm else z


def _shares(query: Tensor, key: Tensor, heads: int) -> Tensor:
    """Give the share of each query in each row, [B, Q, W] and [B, n, W] -> [B, H, n, Q]."""
    logits = _split(key, heads) @ _split(query, heads).mT * query.size(-1) ** -0.5
    return logits.softmax(-1)


def _split(rows: Tensor, heads: int) -> Tensor:
    """Set the heads apart, [B, n, W] -> [B, H, n, C]."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)
