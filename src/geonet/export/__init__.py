"""Trained models in a form that runs without torch."""

from geonet.export.onnx_files import export_onnx

__all__ = ["export_onnx"]
