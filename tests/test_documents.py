"""The code in the documents is run."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

import pyro_bnn as pb

pytestmark = pytest.mark.usefixtures("short_chains", "short_fits")

ROOT = Path(__file__).parent.parent
LONGEST = {  # 5 to 26 seconds; daily, `test_document_calls.py` compares their calls with the signatures
    *("adapters.py", "bandit.py", "mixture_density.py", "transformer.py", "plot_4_prune.py"),
    *("plot_1_plain_to_bayesian.py", "plot_3_is_my_posterior_good.py"),
    *("adapters.md", "export.md", "continual_learning.md", "ensembles.md", "calibrate.md", "chains.md", "laplace.md"),
    *("minibatch_mcmc.md", "graphs.md", "last_layer.md", "active_learning.md", "batch_normalisation.md"),
    *("natural_gradient.md", "hierarchical_priors.md", "own_data.md", "own_network.md", "own_likelihood.md"),
    *("own_loop.md", "scikit_learn.md", "tables.md", "regression.md", "computation.md"),
}

EXAMPLES = {
    # script -> (arguments that make it short, what its output must show)
    "kl_divergence.py": (["--steps", "150"], r"forward KL +1\.[345]\d+ +1\.[67]"),
    "mixture_density.py": (
        ["--epochs", "200"],
        r"(?s)gain +0\.[5-9]\d\d ± .*modes at x = 0\.5: y = 0\.2.*, y = 0\.[45].*, y = 0\.[78]",
    ),
    "transformer.py": (
        ["--texts", "200", "--epochs", "10", "10"],
        r"plain \w+ +10 +[3-6]\S+ +[12]\S+ +0\.(1[2-9]|[23]\d)\d .*\nposterior +10 +[3-6]\S+ +[01]\S+ +0\.(0\d|10)\d ",
    ),
    "adapters.py": (
        ["--texts", "100", "--labelled", "20", "--pretraining", "1", "--epochs", "10", "--seeds", "2"],
        r"(?s)AdamW +0\.\d+ ± .*natural gradients +0\.\d+ ± .*AdamW and Laplace +0\.\d+ ± ",
    ),
    "bandit.py": (
        ["--batches", "6", "--seeds", "2"],
        r"(?s)random +1\.[0-4]\d\d ± .*greedy .*Thompson +0\.[5-9]\d\d ± .*last batch 0\.[0-4]",
    ),
}

TUTORIALS = {
    # script -> (replacements that make it short, what its output must show)
    "plot_1_plain_to_bayesian.py": (
        {'method="svi", seed=0': 'method="svi", num_epochs=1000, seed=0'},
        r"(?s)-1\.00 +[2-9]\.\d\d +1\.00.* 0\.00 +0\.[2-6]\d +1\.00.*with KL weight 1, 0\.[0-6]\d with KL weight 0",
    ),
    "plot_2_detect_the_unknown.py": (
        {},
        r"(?s)plain network: accuracy 9\d.*posterior: accuracy 9[5-9].*mutual information +AUROC 0\.9[5-9]",
    ),
    "plot_3_is_my_posterior_good.py": (
        {"num_samples=600": "num_samples=100", "num_samples=50": "num_samples=20"},
        r"(?s)No sign of.*\nprior-dominated: .*\ncollapsed: .*; NUTS: 4 ch.*outside +mean field .* 0\.[2-7]\d* ± 0",
    ),
    "plot_4_prune.py": (
        # its default length, since a shorter fit is not yet accurate enough to show what pruning costs
        {
            'method="svi", seed=0': 'method="svi", num_epochs=2000, seed=0',
            "guide=pruned.guide, seed": "guide=pruned.guide, num_epochs=2000, seed",
        },
        r"(?s)\n +95 % [^\n]* 9[5-8]\.\d\d%.*98% removed +accuracy [67]\d.*trained on +accuracy 9\d.*network 9[5-9]",
    ),
}


SHORTER = {
    # page -> replacements that make it short
    "README.md": {
        "BNNRegressor(random_state=0)": "BNNRegressor(random_state=0, max_iter=20)",
    },
    "docs/start/classification.md": {"y_train), seed=0)": 'y_train), method="svi", seed=0)'},
    "docs/start/regression.md": {"pb.fit(model, (x, y), seed=0)": 'pb.fit(model, (x, y), method="svi", seed=0)'},
    "docs/start/tables.md": {"(random_state=0)": "(random_state=0, max_iter=20)"},
    "docs/how_to/active_learning.md": {
        "isin(pool, start)]": "isin(pool, start)][::3]",
        "num_samples=200": "num_samples=50",
    },
    "docs/coming_from/pyro.md": {"range(300)": "range(60)", "num_epochs=300": "num_epochs=60"},
    "docs/how_to/nuts.md": {"num_samples=500": "num_samples=100", "num_warmup=500": "num_warmup=100"},
    "docs/how_to/resume.md": {"600": "100"},
    "docs/how_to/chains.md": {"num_warmup=3000": "num_warmup=200", "num_samples=1000": "num_samples=100"},
    "docs/how_to/hierarchical_priors.md": {
        "num_samples=50,": "num_samples=20,",
        "num_warmup=100": "num_warmup=50",
        "chains.sample(100)": "chains.sample(40)",
    },
    "docs/how_to/graphs.md": {"num_samples=500": "num_samples=100", "num_warmup=500": "num_warmup=100"},
}


def by_cost(names):
    """Names of scripts and pages as parameters; those that take longest are left to the nightly run."""
    return [pytest.param(name, marks=pytest.mark.nightly if Path(name).name in LONGEST else ()) for name in names]


def text_of(document):
    """The document, with settings that shorten its run."""
    text = (ROOT / document).read_text()
    for long, short in SHORTER.get(document, {}).items():
        assert long in text
        text = text.replace(long, short)
    return text


def snippets(document):
    return re.findall(r"```python\n(.*?)```", text_of(document), re.DOTALL)


@pytest.mark.parametrize("index", range(len(snippets("README.md"))))
@pytest.mark.filterwarnings(  # short chains, whose status is printed
    "ignore::pyro_bnn.ConvergenceWarning", "ignore::sklearn.exceptions.ConvergenceWarning"
)
def test_readme_snippets_run(index, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    exec(compile(snippets("README.md")[index], f"README.md snippet {index}", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    torch.set_default_dtype(torch.float64)
    if "nats" in printed:
        known, unknown = (float(number) for number in re.findall(r"epistemic ([\d.]+) nats", printed))
        assert 2 * known < unknown
    else:
        assert 80 < int(re.search(r"contain (\d+)% of the new targets", printed).group(1)) < 99
        like, unlike = (int(number) for number in re.findall(r"± (\d+) \(epistemic", printed))
        assert like < unlike


PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if "```python" in path.read_text())
PEERS = [page for page in PAGES if page.startswith("docs/coming_from/")]


ELSEWHERE = {"docs/how_to/lightning.md", "docs/how_to/optimise.md"}
"""Pages run by `test_lightning.py` and `test_botorch.py`: these packages warn or change globals when imported."""


@pytest.mark.parametrize("page", by_cost(sorted(set(PAGES) - ELSEWHERE)))
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # short chains
@pytest.mark.filterwarnings("ignore::pyro_bnn.PosteriorWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers
@pytest.mark.uses_param_store  # by Pyro's own loops
def test_snippets_of_a_page_run_one_after_the_other(page, monkeypatch, tmp_path):
    """All snippets run, except those of other libraries, which follow a line `<!-- needs: PACKAGE -->`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: plt.close("all"))
    torch.set_default_dtype(torch.float32)
    names = {"__name__": "page"}
    ours = re.sub(r"<!-- needs: \S+ -->\s*```python\n.*?```", "", text_of(page), flags=re.DOTALL)
    for index, code in enumerate(re.findall(r"```python\n(.*?)```", ours, re.DOTALL)):
        exec(compile(code, f"{page} snippet {index}", "exec"), names)
    torch.set_default_dtype(torch.float64)


@pytest.mark.nightly
@pytest.mark.parametrize("page", PEERS)
def test_code_before_and_after_runs(page, tmp_path):
    """Each page runs in a new process, since other libraries change globals. Code of missing libraries is skipped."""
    pattern = r"(?:<!-- needs: (\S+) -->\s*)?```python\n(.*?)```"
    found = re.findall(pattern, (ROOT / page).read_text(), re.DOTALL)
    here = [code for package, code in found if not package or importlib.util.find_spec(package)]
    program = tmp_path / "page.py"
    program.write_text("\n".join(here))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert result.returncode == 0, result.stderr


def test_the_commands_that_install_and_test_are_those_of_ci():
    ci = (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "pip install -e . && pyro-bnn demo" in readme
    assert "pip install -e '.[test]' && pytest" in readme
    for part in ("-e .", "pyro-bnn demo", "pytest"):
        assert part in ci


def test_the_version_to_cite_is_that_of_the_library():
    for document in ("CITATION.cff", "docs/cite.md"):
        assert re.search(r"(?m)^ *version\W+([\w.]+)", (ROOT / document).read_text()).group(1) == pb.__version__


BEFORE_THE_FIRST_RELEASE = {
    "README.md": "The library is not on a package index yet",
    "docs/how_to/export.md": "pip install -e",
    "pyro_bnn/_core/extras.py": "in the checkout",
    "CHANGELOG.md": "Nothing is released yet",
    "docs/SECURITY.md": "Before the first release",
}


@pytest.mark.parametrize("document", BEFORE_THE_FIRST_RELEASE)
def test_texts_that_say_that_nothing_is_released_are_mended_with_the_first_release(document):
    says_so = BEFORE_THE_FIRST_RELEASE[document] in " ".join((ROOT / document).read_text().split())
    assert says_so == (pb.__version__ == "0.1.0.dev0")


def test_every_example_is_in_the_table():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


def test_every_example_has_a_line_in_the_list_of_examples():
    listed = re.findall(r"<sphx_glr_gallery_examples_(\w+\.py)>", (ROOT / "examples/GALLERY_HEADER.rst").read_text())
    assert sorted(listed) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_short(name):
    assert len((ROOT / "examples" / name).read_text().splitlines()) < 310  # of at most 80 columns


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.uses_param_store
def test_examples_explain_each_option_with_its_default(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    said, _, options = capsys.readouterr().out.partition("options:")
    assert said.splitlines()[0].startswith("usage")
    for option in re.split(r"\n  (?=-)", options)[2:]:  # the first is --help
        is_flag = re.match(r"--[\w-]+  +\w", option)
        assert is_flag or re.match(r"--\S+ \S+ \w.* \(default: ", " ".join(option.split())), option


@pytest.mark.parametrize("name", by_cost(EXAMPLES))
@pytest.mark.uses_param_store
def test_examples_run_and_show_their_effect(name, tmp_path, monkeypatch, capsys):
    """Examples run in this process: a new one would take longer to import torch than most examples take."""
    arguments, expected = EXAMPLES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))  # as Python itself does
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    plt.close("all")
    torch.set_default_dtype(torch.float64)
    assert re.search(expected, capsys.readouterr().out)


def test_every_tutorial_is_in_the_table():
    assert {path.name for path in (ROOT / "docs" / "tutorials").glob("*.py")} == set(TUTORIALS)


@pytest.mark.parametrize("name", by_cost(TUTORIALS))
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # short fits
@pytest.mark.usefixtures("optimized")  # C for 1,000 images is slow otherwise
def test_tutorials_run_and_show_their_effect(name, capsys, monkeypatch):
    monkeypatch.delenv("PYRO_BNN_DATA", raising=False)  # the digits, which are everywhere
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: plt.close("all"))
    replacements, expected = TUTORIALS[name]
    text = (ROOT / "docs" / "tutorials" / name).read_text()
    for long, short in replacements.items():
        assert long in text
        text = text.replace(long, short)
    torch.set_default_dtype(torch.float32)
    names = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    torch.set_default_dtype(torch.float64)
    assert re.search(expected, capsys.readouterr().out)
    if "nuts" in names:
        assert names["nuts"].status.ok, names["nuts"].status


def test_code_on_pages_fits_into_the_column():
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for code in re.findall(r"```(?:python|console|bash)\n(.*?)```", document.read_text(), re.DOTALL):
            assert all(len(line) <= 80 for line in code.splitlines()), f"{document}: {code}"


def test_no_line_of_a_paragraph_is_taken_for_a_comment_or_a_list():
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
        lost = re.findall(r"(?m)^ *%.*", text) + re.findall(r"(?m)(?<=\S\n)1\) .*", text)
        assert not lost, f"{document}: {lost}"


def test_the_list_of_results_has_one_short_line_for_each_page():
    lines = re.findall(r"(?m)^\| \[[^]]+\]\((\w+)\.md\) \| (.*) \|$", (ROOT / "docs/results/index.md").read_text())
    assert {page for page, _ in lines} == {path.stem for path in (ROOT / "docs/results").glob("*.md")} - {"index"}
    assert [line for _, line in lines if len(line.split()) > 15] == []


def test_local_links_lead_somewhere():
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            made_by_sphinx = document.name == "index.md" and target.startswith("gallery/")
            if not target.startswith("http") and not made_by_sphinx:
                assert (document.parent / target).exists(), f"{document}: {target}"


def test_each_option_of_a_directive_has_a_line_of_its_own():
    """Sphinx takes the rest of the line for the value of the first option, and does not warn."""
    for document in (ROOT / "docs").rglob("*.md"):
        joined = re.findall(r"(?m)^ *:[\w-]+:.* :[\w-]+:(?: .*)?$", document.read_text())
        assert not joined, f"{document}: {joined}"


def test_cards_link_to_pages():
    for document in (ROOT / "docs").rglob("*.md"):
        for target, kind in re.findall(r"(?m)^:link: (.*)\n(.*)", document.read_text()):
            assert kind == ":link-type: doc", f"{document}: {target}"
            if not target.startswith("gallery/"):
                assert (document.parent / f"{target}.md").exists() or (document.parent / f"{target}.rst").exists()
