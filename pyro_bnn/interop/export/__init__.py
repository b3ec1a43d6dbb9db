"""Exported predictions, which run without this package: a plain module, `torch.export`, or an ONNX file."""

from ._module import PredictiveModule as PredictiveModule
from ._onnx import export_onnx as export_onnx
