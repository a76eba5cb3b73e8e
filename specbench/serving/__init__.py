"""How are many requests decoded? Requests in, each one's tokens and the rounds' counts out.

Rows come and go over one cache. Open `decoder.py` first; `serving.py` is the loop and
`scheduler.py` says, without tensors, who takes which row.
"""
