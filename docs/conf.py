"""Sphinx configuration."""

import pyro_bnn

project = "pyro-bnn"
author = "the pyro-bnn authors"
release = pyro_bnn.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "myst_parser",
]
autosummary_generate = True
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "Bayesian neural networks on Pyro", "page_width": "1100px"}
