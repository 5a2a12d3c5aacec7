"""Explanations of predictions: node importance, kept nodes of each level, sampler diversity."""

from gtpool.explain.connectivity import LevelEdges, connectivity, count_edges
from gtpool.explain.diversity import Comparison, Coverage, Diversity, compare_samplers, diversity
from gtpool.explain.explanation import Explanation, Fidelity, LevelView, explain
from gtpool.explain.source import Explained, Explanations, explain_source, name_nodes

__all__ = [
    "Comparison",
    "Coverage",
    "Diversity",
    "Explained",
    "Explanation",
    "Explanations",
    "Fidelity",
    "LevelEdges",
    "LevelView",
    "compare_samplers",
    "connectivity",
    "count_edges",
    "diversity",
    "explain",
    "explain_source",
    "name_nodes",
]
