"""Every public name is documented, and every example in a docstring does what it shows."""

import doctest
import importlib
import inspect
import pathlib

import pytest

import ps_train

pytestmark = pytest.mark.graph
PACKAGE = pathlib.Path(ps_train.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)


@pytest.mark.parametrize("name", MODULES)
def test_module_says_what_it_is_for(name):
    text = importlib.import_module(name).__doc__
    assert text and text.splitlines()[0].endswith((".", ":", "…")), text


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_module(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(
        module,
        extraglobs={"ps_train": ps_train},
        optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL,
    )
    assert not failed, f"see the output: python -m doctest of {name}"


@pytest.mark.parametrize("name", ps_train.__all__)
def test_public_name_is_documented(name):
    thing = getattr(ps_train, name)
    assert inspect.getdoc(thing), name
    if not inspect.isclass(thing):
        return
    for member, value in vars(thing).items():
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{name}.{member}"


@pytest.mark.parametrize("name", ps_train.__all__)
def test_every_public_name_has_an_example(name):
    assert ">>>" in inspect.getdoc(getattr(ps_train, name))
