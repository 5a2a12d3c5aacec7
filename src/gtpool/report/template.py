"""Pages from templates."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


def template(file: Path) -> Template:
    """Load a template that escapes what it is given, and fails at what it lacks."""
    return Environment(
        loader=FileSystemLoader(file.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(file.name)
