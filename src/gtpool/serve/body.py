"""Receiving and validating the JSON body of a request."""

import json
import re
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ValidationError

from gtpool.serve.limits import RequestError

_UNION = re.compile(r"str|int|list\[.*")  # how pydantic names a failed member of a union
_LONGEST = 200  # characters of a request that an error may repeat


async def receive(request: Request, most: int) -> bytes:
    """Return the body of a request; raise a RequestError if it is too large or not JSON.

    Args:
        request: The request.
        most: Maximum number of bytes, whatever Content-Length says.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if (
        kind != "application/json"
        or request.headers.get("content-encoding", "identity") != "identity"
    ):
        raise RequestError(415, "send Content-Type: application/json and an uncompressed body")
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > most:
        raise _too_large(most)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)


def parse(body: bytes, form: type[BaseModel]) -> dict[str, Any]:
    """Return parsed JSON; raise a ``RequestError`` that locates the first error.

    Args:
        body: UTF-8 text.
        form: Schema to validate against; values are returned unconverted.

    Example:
        >>> from gtpool.serve.schemas import ExplainSmiles
        >>> parse(b'{"smiles": "CCO"}', ExplainSmiles)
        {'smiles': 'CCO'}
    """
    try:
        value = json.loads(body.decode(), object_pairs_hook=_once)
    except UnicodeDecodeError:
        raise RequestError(422, "the body is not UTF-8 text") from None
    except RecursionError:
        raise RequestError(
            422, "the body is not JSON that can be read: it nests too deep"
        ) from None
    except ValueError as error:
        raise RequestError(422, f"the body is not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(422, f"the body must be an object with the key {_keys(form)}")
    try:
        form.model_validate(value)
    except ValidationError as error:
        raise _refused(error, form) from None
    return value


def _too_large(most: int) -> RequestError:
    return RequestError(413, f"the body is larger than {most} bytes; send several requests")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("duplicate key in an object")
    return value


def _keys(form: type[BaseModel]) -> str:
    return " or ".join(form.model_fields)


def _refused(error: ValidationError, form: type[BaseModel]) -> RequestError:
    """Report the validation error with the longest path."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    fault = max(faults, key=lambda one: len(one["loc"]))
    where = ""
    for part in fault["loc"]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif not _UNION.fullmatch(part):
            where += f".{part}" if where else part
    detail = fault["msg"]
    if fault["type"] in ("extra_forbidden", "missing") and "." not in where:
        detail = f"this model takes {_keys(form)}"
    elif fault["type"] == "extra_forbidden":
        detail = "unknown key"
    return RequestError(422, detail, where[:_LONGEST] or None)
