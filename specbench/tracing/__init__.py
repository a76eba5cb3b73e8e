"""How far would each drafter get along a finished text? One pass in, one trace a drafter out.

Open `conversation.py` first.
"""
