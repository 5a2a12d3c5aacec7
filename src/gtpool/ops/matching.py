"""Greedy matchings by normalised cut weight: the hierarchy of Graclus."""

from gtpool.ops.partitions import Labels, Weights

_DIGITS = 9  # weights that differ by less are equal


def graclus_labels(weights: Weights, steps: int) -> Labels:
    """Return the clusters of each node after each of several matchings.

    Args:
        weights: Weights of the edges of a graph, equal both ways, without loops.
        steps: Number of matchings; each one matches the clusters of the last.

    Example:
        >>> path = [{1: 1.0}, {0: 1.0, 2: 1.0}, {1: 1.0, 3: 1.0}, {2: 1.0}]
        >>> graclus_labels(path, 2)
        [[0, 0, 1, 1], [0, 0, 0, 0]]
    """
    volume = [sum(found.values()) for found in weights]
    own, found = list(range(len(weights))), list[list[int]]()
    for _ in range(steps):
        cluster = _match(weights, volume)
        weights, volume = _contract(weights, volume, cluster)
        own = [cluster[node] for node in own]
        found.append(own)
    return found


def _match(weights: Weights, volume: list[float]) -> list[int]:
    """Return the pair of each node, or a number of its own, in the order of visits.

    Nodes are visited in ascending order of volume. Each one is matched to the free neighbour of the
    highest normalised weight.
    """
    cluster, visited = [-1] * len(weights), 0
    for node in sorted(range(len(weights)), key=lambda node: (volume[node], node)):
        if cluster[node] >= 0:
            continue
        free = [
            (round(weight * (1 / volume[node] + 1 / volume[near]), _DIGITS), -near)
            for near, weight in weights[node].items()
            if cluster[near] < 0
        ]
        cluster[node] = visited
        if free:
            cluster[-max(free)[1]] = visited
        visited += 1
    return cluster


def _contract(
    weights: Weights, volume: list[float], cluster: list[int]
) -> tuple[Weights, list[float]]:
    """Return the weights between clusters, and their volumes with the edges inside."""
    coarse: Weights = [{} for _ in range(max(cluster) + 1)]
    total = [0.0] * len(coarse)
    for node, found in enumerate(weights):
        own = cluster[node]
        total[own] += volume[node]
        for near, weight in found.items():
            if cluster[near] != own:
                coarse[own][cluster[near]] = coarse[own].get(cluster[near], 0.0) + weight
    return coarse, total
