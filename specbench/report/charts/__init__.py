"""The charts of the report by kind; everything here imports matplotlib."""
