"""Every error of the package explained: its cause, five lines that raise it, the fix.

The tests run the lines of every page: the first raise exactly its error, the mended ones
run through.
"""

from . import arrays, ops, sweeps
from .page import Explanation

__all__ = ["EXPLANATIONS", "Explanation", "explanations_of"]

EXPLANATIONS: dict[str, Explanation] = sweeps.PAGES | arrays.PAGES | ops.PAGES


def explanations_of(name: str) -> dict[str, Explanation]:
    """The pages for the name of a kind ("in-place") or of an error class; none if there
    is neither. Upper and lower case are the same.

    >>> from tinygrad_helix.explanations import explanations_of
    >>> list(explanations_of("in-place")), len(explanations_of("shapeerror")) > 1
    (['in-place'], True)
    """
    wanted = name.lower()
    return {
        kind: page
        for kind, page in EXPLANATIONS.items()
        if wanted in (kind, page.error.__name__.lower())
    }
