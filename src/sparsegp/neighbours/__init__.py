"""Bridges to other packages, each in a module of its own that imports that package when it is imported itself.

`pip install 'sparsegp[neighbours]'` brings all of them.
"""

__all__ = ["grids", "mlflow", "onnx", "shap", "skpro", "sktime"]
