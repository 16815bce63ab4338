"""The check that modules do not import each other in circles."""

from pathlib import Path

from scripts.lib.circles import complaints, imports_of

FOR_TYPES = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    "


def told(root: Path, *entangled: str, **modules: str) -> list[str]:
    """What is said of a package with these modules; two underscores in a name stand for a folder."""
    package = root / "house"
    for name, text in modules.items():
        path = package / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return list(complaints(imports_of(package), entangled))


def test_imports_that_point_down_are_fine(tmp_path: Path) -> None:
    """Two that need a third; one of them also the other."""
    assert [] == told(
        tmp_path,
        roof="from house import wall\nimport house.cellar.floor\n",
        wall="from house.cellar.floor import Stone\n",
        cellar__floor="import os\n",
    )


def test_a_circle_names_its_imports(tmp_path: Path) -> None:
    """Of three modules; who only uses them is not part of it."""
    assert ["circle at run time: house.a -> house.b, house.b -> house.c.d, house.c.d -> house.a"] == told(
        tmp_path,
        a="from house.b import B\n",
        b="import house.c.d\n",
        c__d="from house import a\n",
        user="from house import a, b\n",
    )


def test_an_import_inside_a_function_closes_a_circle(tmp_path: Path) -> None:
    """It hides that neither can be read without the other."""
    inside = "def make() -> object:\n    from house.a import A\n\n    return A()\n"

    assert ["circle at run time: house.a -> house.b, house.b -> house.a"] == told(
        tmp_path, a="from house.b import B\n", b=inside
    )


def test_a_circle_for_types_is_told_apart(tmp_path: Path) -> None:
    """It works, and still neither folder can be moved without the other."""
    assert ["circle by imports for types: house.a -> house.c.b, house.c.b -> house.a"] == told(
        tmp_path, a="from house.c.b import B\n", c__b=f"{FOR_TYPES}from house.a import A\n"
    )


def test_a_circle_for_types_is_fine_within_a_listed_folder(tmp_path: Path) -> None:
    """One makes the other, which names the class of its maker."""
    circle = {"c__a": "from house.c.b import B\n", "c__b": f"{FOR_TYPES}from house.c.a import A\n"}

    assert [] == told(tmp_path, "house.c", **circle)
    assert ["circle by imports for types: house.c.a -> house.c.b, house.c.b -> house.c.a"] == told(
        tmp_path, **circle
    )


def test_a_folder_is_not_listed_without_a_circle(tmp_path: Path) -> None:
    """Else the next one would come unseen. A folder that is gone, as that of a room, may stay on the list."""
    stale = "no circle in house.c: take it off the list of those that have one"

    assert [stale] == told(tmp_path, "house.c", "house.gone", a="import os\n", c__b="from house.a import A\n")


def test_a_circle_at_run_time_within_a_folder_is_one(tmp_path: Path) -> None:
    """Neither can be imported without the other, wherever it stands."""
    assert ["circle at run time: house.c.a -> house.c.b, house.c.b -> house.c.a"] == told(
        tmp_path, c__a="from house.c.b import B\n", c__b="from house.c.a import A\n"
    )
