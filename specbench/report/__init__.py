"""Stored runs as answers: terminal tables, JSON, Markdown, CSV and one HTML page."""
