"""The recipes for Lightning and Fabric run as they are printed."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parent.parent / "docs" / "how_to" / "lightning.md"

pytestmark = [
    # Lightning's own use of torch's pytrees
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated:FutureWarning"),
    # advice for machines with many cores
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]


@pytest.mark.nightly
def test_the_blocks_of_the_page_run_in_order(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    names = {"__name__": "page"}
    for index, code in enumerate(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)):
        exec(compile(code, f"{PAGE.name} block {index}", "exec"), names)
    torch.set_default_dtype(torch.float64)
    printed = capsys.readouterr().out
    accuracies = re.findall(r"^(.*): accuracy (\d\.\d+)$", printed, re.MULTILINE)
    assert [name for name, _ in accuracies] == ["LightningModule", "svi_step in Lightning, direct", "Fabric"]
    assert all(float(accuracy) > 0.85 for _, accuracy in accuracies)
    assert re.search(r"ClassificationPrediction: 297 rows, 10 classes, 100 draws", printed)
