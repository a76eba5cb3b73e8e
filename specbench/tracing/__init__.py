"""How far would each drafter get along a finished text? One pass in, one trace per drafter out.

Open `conversation.py` first.
"""
