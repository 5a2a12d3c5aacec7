"""The samplers in the paper's words: one graph, one point after another, in exact arithmetic."""

from bisect import bisect_left
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil, exp, floor, ldexp


def sample(name, score, sizes, ratio, *, order="index", drawn=None):
    """List the kept nodes of a batch; ``drawn`` holds its random points, graph after graph."""
    values = score.double().tolist()
    drawn = None if drawn is None else iter(drawn)
    kept = []
    first = 0
    for n in sizes:
        m = number_kept(n, ratio)
        points = even_points(m) if drawn is None else [Fraction(next(drawn)) for _ in range(m)]
        nodes = keep(name, values[first : first + n], m, order, points)
        kept += [first + node for node in sorted(nodes)]
        first += n
    return kept


def number_kept(n, ratio):
    return min(ratio, n) if isinstance(ratio, int) else ceil(Fraction(str(ratio)) * n)


def even_points(m):
    return [Fraction(k, m + 1) for k in range(1, m + 1)]


def keep(name, score, m, order, points):
    if name == "topk":
        return sorted(range(len(score)), key=lambda node: (-score[node], node))[:m]
    wheel = list(range(len(score)))
    if order == "score":
        wheel.sort(key=lambda node: (score[node], node))
    weight = weights(score, m)
    cdf = list(accumulate(weight[node] for node in wheel))
    borders = cdf if name == "rws" else midpoints(cdf)
    return [wheel[place] for place in spin(borders, points)]


def weights(score, m):
    """Shares of the wheel, in units so small that int64 just holds what the library computes."""
    bits = 62 - len(score).bit_length() - (m + 1).bit_length()
    top = max(score)
    return [floor(ldexp(exp(value - top), bits)) for value in score]


def midpoints(cdf):
    """Borders midway between neighbouring CDF values, in half units; the last stays at 1."""
    return [left + right for left, right in pairwise(cdf)] + [2 * cdf[-1]]


def spin(borders, points):
    """Give each point, in its turn, the first place whose right border is not left of it.

    If that place is taken, the point goes to the nearest free one on the left, around the circle.
    """
    whole = borders[-1]
    onward = list(range(len(borders)))  # a free place leads to itself, a taken one to the left
    for point in points:
        place = nearest_free(onward, bisect_left(borders, ceil(point * whole)))
        onward[place] = (place - 1) % len(borders)
        yield place


def nearest_free(onward, place):
    """Walk left to a free place, and shorten the walk for those who come after."""
    walked = []
    while onward[place] != place:
        walked.append(place)
        place = onward[place]
    for taken in walked:
        onward[taken] = place
    return place
