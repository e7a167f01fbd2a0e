"""The examples in the docstrings of the modules that need no TensorFlow."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "addresses",
        "cluster",
        "config",
        "curve",
        "errors",
        "experiment.comparisons",
        "experiment.grid",
        "experiment.machine",
        "experiment.results",
        "experiment.speed",
        "experiment.table",
        "failures",
        "figures",
        "paths",
        "profile",
        "resolvers.from_flags",
        "resolvers.launched",
        "resolvers.node_lists",
        "resolvers.tf_config",
        "staleness",
        "timeline",
        "wording",
    ],
)
def test_examples(name):
    results = doctest.testmod(importlib.import_module(f"ps_train.{name}"))
    assert results.attempted and not results.failed
