"""How is a run presented? A stored run in; terminal tables, JSON, Markdown, CSV and HTML out.

Open `document.py` first: all views are made from the document that it builds.
"""
