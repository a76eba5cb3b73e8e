"""What made the embedded models: no part of the installed package."""
