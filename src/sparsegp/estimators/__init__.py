"""scikit-learn shells around the models: no algebra."""
