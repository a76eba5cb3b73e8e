"""One decorated pure function a metric; a new metric is one file in this folder."""
