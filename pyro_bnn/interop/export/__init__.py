"""Predictions without this package: a plain module of stored draws, `torch.export`, ONNX."""

from ._module import PredictiveModule as PredictiveModule
from ._onnx import export_onnx as export_onnx
