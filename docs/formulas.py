r"""Formulas of the docstrings as plain text, for the API reference: no script has to load for them.

The docstrings hold LaTeX in the manner of Sphinx; mkdocstrings loads this extension, which turns
``\hat{X} &= A_{idx, :} V`` into ``X̂ = A[idx, :] V``. A command that it does not know is an error.
"""

import re
from textwrap import indent
from typing import Any
from unicodedata import combining

from griffe import Extension, Object

SIGNS = {
    "top": "ᵀ", "lambda": "λ", "delta": "δ", "sigma": "σ", "mu": "μ", "alpha": "α", "phi": "φ",
    "Phi": "Φ", "pi": "π", "chi": "χ", "Theta": "Θ", "ell": "ℓ", "sum": "Σ", "odot": "⊙",
    "times": "×", "in": "∈", "ne": "≠", "ge": "≥", "le": "≤", "leftarrow": "←", "infty": "∞",
    "dots": "…", "ldots": "…", "cdot": "·", "setminus": "∖",
    "lceil": "⌈", "rceil": "⌉", "lfloor": "⌊", "rfloor": "⌋", "lVert": "‖", "rVert": "‖",
    "Vert": "‖", "|": "‖", "max": "max", "min": "min", "exp": "exp", "tanh": "tanh", "quad": "  ",
    "qquad": "   ", ",": " ", ";": " ", "textstyle": "", "left": "", "right": "", "big": "",
    "Bigl": "", "Bigr": "",
}  # fmt: skip
LETTERS = {"A": "𝒜", "N": "𝒩", "R": "ℝ"}
GROUPS = {
    r"\tilde": lambda inside: f"{inside}\u0303",
    r"\hat": lambda inside: f"{inside}\u0302",
    r"\bar": lambda inside: f"{inside}\u0304",
    r"\mathcal": lambda inside: LETTERS[inside],
    r"\mathbb": lambda inside: LETTERS[inside],
    r"\mathrm": str,
    r"\mathbf": str,
    r"\text": str,
    r"\sqrt": lambda inside: f"√{_held(inside)}",
    "_": lambda inside: f"_{inside}" if re.fullmatch(r"\w+'?", inside) else f"[{inside}]",
    "^": lambda inside: f"^{_held(inside)}",
}


class Formulas(Extension):
    """Rewrites each docstring once all of the package is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401 - griffe's own
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = readable(obj.docstring.value)


def readable(docstring: str) -> str:
    """Turn blocks of formulas into blocks of code, and what is marked inside a line into code.

    An example in the singular is given the plural, by which griffe knows that it is code.
    """
    block = re.compile(r"^( *)\.\. math:: *(\S.*)?\n((?:\1 +\S.*\n)*)", re.MULTILINE)
    text = block.sub(_block, docstring + "\n")
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", _inside, text)
    return re.sub(r":(?:func|class|meth|mod):`~?([^`]+)`", r"`\1`", text).removesuffix("\n")


def plain(tex: str) -> str:
    r"""Write a formula without LaTeX.

    Example:
        >>> plain(r"X' = S^\top X / \sqrt{C}, \quad \tilde{D}^{-1/2} A_{idx, :} x_{ij}")
        "X' = Sᵀ X / √C,  D̃^(-1/2) A[idx, :] x_ij"
    """
    text = re.sub(r"\\lVert |\s\\rVert", "‖", " ".join(tex.split()))
    sign = re.compile(r"\\([A-Za-z]+(?![{A-Za-z])|[^A-Za-z])")
    text = sign.sub(lambda found: SIGNS.get(found[1], found[0]), text)
    before = None
    while text != before:  # the innermost braces first
        before = text
        text = re.sub(r"(\\[a-z]+|[_^])\{([^{}]*)\}(?!\{)", _group, text, count=1)
        text = re.sub(r"\\t?frac\{([^{}]*)\}\{([^{}]*)\}", _fraction, text)
    if set(text) & set("\\{}"):
        raise ValueError(f"docs/formulas.py does not know what stands in {text!r}")
    text = re.sub(r"([⌈⌊]) | ([⌉⌋])", r"\1\2", text)
    return re.sub(r" {2,}", "  ", text.replace("^ᵀ", "ᵀ")).strip()


def _block(found: re.Match[str]) -> str:
    """Write a block of formulas as one of code, a line for each equation."""
    margin, first, rest = found[1], found[2] or "", found[3]
    lines = [_row(row) for row in (first + rest).split(r"\\")]
    return indent("\n".join(["```text", *lines, "```", ""]), margin) + "\n"


def _inside(found: re.Match[str]) -> str:
    """Write a formula inside a line; a letter alone needs no box around it."""
    text = plain(found[1])
    return text if text.isalpha() else f"`{text}`"


def _row(row: str) -> str:
    """Lay out one equation, its number at the end of the line."""
    formula, _, number = row.partition("&&")
    formula = plain(formula.replace("&", ""))
    wide = sum(not combining(letter) for letter in formula)
    return formula + " " * max(2, 60 - wide) + plain(number) if number else formula


def _group(found: re.Match[str]) -> str:
    return GROUPS.get(found[1], lambda _: found[0])(found[2])


def _fraction(found: re.Match[str]) -> str:
    return f"{_held(found[1])} / {_held(found[2])}"


def _held(text: str) -> str:
    """Hold together what is more than one name."""
    whole = re.fullmatch(r"[\w√]+|\([^()]*\)|‖[^‖]*‖(_\w)?|tr\([^()]*\)", text)
    return text if whole else f"({text})"
