"""The OpenAPI description of segmenting, which a body that is a file cannot give by itself."""

import html
from collections.abc import Mapping
from typing import Any

from paumer import __version__
from paumer.serve.answers import OUTPUTS, PRIORITIES

_FILE = {"schema": {"type": "string", "format": "binary"}}
_FORM = {"type": "object", "properties": {"image": _FILE["schema"]}, "required": ["image"]}
_ERROR = {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}


def _option(name: str, text: str, **schema: Any) -> dict[str, Any]:
    kind = {"type": "string", **schema}
    return {"name": name, "in": "query", "required": False, "description": text, "schema": kind}


def _failure(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": _ERROR}}


SEGMENT: dict[str, Any] = {
    "parameters": [
        _option(
            "mode",
            "A mode such as 3:0.4,9:0.9 exit, none, an operating point's name, or auto: the most "
            "accurate point that keeps the latency target.",
            default="auto",
        ),
        _option("floor", "With auto: name of the fastest operating point that will do."),
        _option("deadline_ms", "Milliseconds for the answer (default: the service's target)."),
        _option(
            "priority",
            "Who is refused first where not all can be in time.",
            enum=list(PRIORITIES),
            default="normal",
        ),
        _option("output", "What to answer.", enum=list(OUTPUTS), default="mask"),
    ],
    "requestBody": {
        "required": True,
        "description": "A PNG, JPEG, WebP, BMP, GIF, TIFF or PPM file; a form may hold options too",
        "content": {"application/octet-stream": _FILE, "multipart/form-data": {"schema": _FORM}},
    },
    "responses": {
        "200": {
            "description": "The result. Headers: X-Paumer-Mode, X-Paumer-Point, Server-Timing.",
            "content": {"image/png": _FILE, "application/json": {}},
        },
        "400": _failure("A wrong option, or a damaged image"),
        "403": _failure("A page from elsewhere"),
        "408": _failure("The body did not arrive in time"),
        "413": _failure("Too many bytes or pixels"),
        "415": _failure("Not an image of a known kind"),
        "421": _failure("A name that this service does not answer for"),
        "422": _failure("Decoding takes too much time or memory"),
        "429": _failure("At capacity: come back after Retry-After seconds"),
        "503": _failure("Starting or shutting down"),
    },
}


def listing(described: Mapping[str, Any]) -> str:
    """The endpoints as a plain page that needs nothing else."""
    rows = [
        f"<dt><code>{method.upper()} {html.escape(path)}</code></dt>"
        f"<dd>{html.escape(item.get('description', ''))}</dd>"
        for path, methods in described["paths"].items()
        for method, item in methods.items()
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>paumer</title>'
        f"<h1>paumer {__version__}</h1><dl>{''.join(rows)}</dl>"
        '<p>In full: <a href="/openapi.json">openapi.json</a></p></html>'
    )
