"""Scale and shape of forecasts, from residuals of rows that the model had not seen."""
