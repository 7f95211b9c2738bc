"""Bridges to other packages, each in a module of its own that needs that package and imports it.

`skpro`, `sktime`, `mlflow`, `shap`, `grids` (xarray and GeoPandas) and `onnx`. They are not imported with sparsegp.
"""
