"""The charts of the report, one file each; everything here imports matplotlib."""
