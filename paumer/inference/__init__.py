"""From an image to its labels: predictor, engines, operating points, folders, video."""
