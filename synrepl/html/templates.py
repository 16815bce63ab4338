"""Jinja2 templates of the pages. They escape all text, and format numbers, times and names for people."""

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template

from synrepl.html import humanize


def load_template(package: str, name: str, *more: str, **names: Any) -> Template:
    """Load a template of a package, or of this one. It can use `names` and the functions of `humanize`.

    It can include templates of the packages `more`.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(one, ".") for one in (package, __package__, *more)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {function: getattr(humanize, function) for function in humanize.__all__}
    environment.tests["blank"] = lambda value: value is None or value == ""
    environment.globals |= names
    return environment.get_template(name)
