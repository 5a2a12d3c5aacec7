"""The OpenAPI description of the service, and a page of it that needs no network."""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gtpool.report.template import template
from gtpool.serve import messages

_Json = dict[str, Any]

_REFERENCE = "#/components/schemas/{model}"
_BODIES = (
    messages.PredictSmiles,
    messages.PredictGraphs,
    messages.ExplainSmiles,
    messages.ExplainGraph,
)
_PROBLEMS = {
    401: "The API key is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    422: "The body cannot be read, asks for too much, or names a graph that cannot be predicted.",
    429: "There is too much to do; come again after the seconds of Retry-After.",
    503: "No answer could be had in time.",
}


def asks_for(form: type[BaseModel], example: _Json) -> _Json:
    """Describe the body of a request, which the service reads by itself."""
    schema = {"$ref": _REFERENCE.format(model=form.__name__)}
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def answers_with(form: type[BaseModel] | None, *problems: int) -> dict[int | str, _Json]:
    """Describe the answer to a request, if it is told, and how it can be turned away."""
    told: dict[int | str, _Json] = {
        status: {"model": messages.Problem, "description": _PROBLEMS[status]} for status in problems
    }
    return told if form is None else {200: {"model": form, "description": "The answer."}, **told}


def describe(app: FastAPI) -> _Json:
    """Give the OpenAPI description, with the bodies of requests that FastAPI does not know."""
    described = app.openapi()
    text = json.dumps(described)
    forms = [form for form in _BODIES if _REFERENCE.format(model=form.__name__) in text]
    _, found = models_json_schema([(form, "validation") for form in forms], ref_template=_REFERENCE)
    described["components"]["schemas"] |= found["$defs"]
    return described


def docs_page(described: _Json) -> str:
    """Lay the description out as one HTML page."""
    page = template(Path(__file__).with_name("docs.html.j2"))
    operations = [
        {"path": path, "method": method.upper(), **operation}
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    return page.render(
        info=described["info"],
        operations=operations,
        schemas=described["components"]["schemas"],
        kind=_kind,
    )


def _kind(schema: _Json) -> str:
    """Say in words what a schema takes."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_kind(part) for part in schema[key])
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(part) for part in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of ({_kind(schema['items'])})" if "items" in schema else "list"
    return str(schema.get("type", "anything"))
