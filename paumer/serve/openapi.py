"""The OpenAPI description of segmenting, which a body that is a file cannot give by itself."""

from typing import Any

from paumer.serve.answers import OUTPUTS, PRIORITIES

_FILE = {"schema": {"type": "string", "format": "binary"}}
_FORM = {"type": "object", "properties": {"image": _FILE["schema"]}, "required": ["image"]}
_ERROR = {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}

_MODES = {
    "auto": "the service chooses by its load",
    "none": "no pausing",
    "3:0.4": "two fifths of the patches pause after block 3",
    "5:<0.3": "after block 5 patches of an entropy below 0.3 pause",
    "3:0.4,9:0.9 exit": "two pauses; paused patches take the auxiliary head's label",
    "9:1 exit": "all patches leave after block 9",
    "1-6:~0.1": "a tenth is merged after each of blocks 1 to 6",
    "4:0.5 by=neighbours protect=car+bicyclist": "scored with their neighbours; these pause last",
    "3:0.4 size=288": "the shorter side is scaled to 288 first",
}


def _option(name: str, text: str, examples: dict[str, str], **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": text,
        "schema": {"type": "string", **schema},
        "examples": {value: {"summary": why, "value": value} for value, why in examples.items()},
    }


def _failure(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": _ERROR}}


SEGMENT: dict[str, Any] = {
    "parameters": [
        _option(
            "mode",
            "A mode such as 3:0.4,9:0.9 exit, none, an operating point's name, or auto: the most "
            "accurate point that keeps the latency target.",
            _MODES,
            default="auto",
        ),
        _option(
            "floor",
            "With auto: name of the fastest operating point that will do.",
            {"balanced": "nothing faster, and less accurate, than this point"},
        ),
        _option(
            "deadline_ms",
            "Milliseconds for the answer (default: the service's target).",
            {"200": "five images a second"},
        ),
        _option(
            "priority",
            "Who is refused first where not all can be in time.",
            {"low": "work that can wait"},
            enum=list(PRIORITIES),
            default="normal",
        ),
        _option(
            "output",
            "What to answer.",
            {
                "mask": "a PNG of class ids with a palette",
                "overlay": "a PNG of the image under its classes",
                "rle": "JSON: runs of [class, length] along the rows",
                "arrays": "safetensors: labels, entropy, pauses, mergings",
                "all": "JSON: what the page shows",
            },
            enum=list(OUTPUTS),
            default="mask",
        ),
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
