"""What the OpenAPI description says of segmenting: a body that is a file describes itself not."""

from typing import Any

from paumer.serve.answers import OUTPUTS


def _option(name: str, text: str, **schema: Any) -> dict[str, Any]:
    kind = {"type": "string", **schema}
    return {"name": name, "in": "query", "required": False, "description": text, "schema": kind}


def _failure(text: str) -> dict[str, Any]:
    shape = {"type": "object", "properties": {"error": {"type": "string"}}}
    return {"description": text, "content": {"application/json": {"schema": shape}}}


_FILE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"image": _FILE}, "required": ["image"]}

SEGMENT: dict[str, Any] = {
    "parameters": [
        _option(
            "mode",
            "A mode such as 3:0.4,9:0.9 exit, none, an operating point's name, or auto: the most "
            "accurate point that keeps the latency target.",
            default="auto",
        ),
        _option("floor", "With auto: name of the fastest operating point that will do."),
        _option("output", "What to answer.", enum=[*OUTPUTS, "all"], default="mask"),
    ],
    "requestBody": {
        "required": True,
        "description": "A PNG, JPEG, WebP, BMP, GIF, TIFF or PPM file; a form may hold options too",
        "content": {
            "application/octet-stream": {"schema": _FILE},
            "multipart/form-data": {"schema": _FORM},
        },
    },
    "responses": {
        "200": {
            "description": "The result. Headers: X-Paumer-Mode, X-Paumer-Point, Server-Timing.",
            "content": {"image/png": {"schema": _FILE}, "application/json": {}},
        },
        "400": _failure("A wrong option, or a damaged image"),
        "408": _failure("The body did not arrive in time"),
        "413": _failure("Too many bytes or pixels"),
        "415": _failure("No image of a known kind"),
        "429": _failure("At capacity: come back after Retry-After seconds"),
        "503": _failure("Starting or shutting down"),
    },
}
