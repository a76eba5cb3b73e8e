"""How were the embedded models made? Their corpus in, trained models and their card out.

`train.py` trains them, `card.py` measures them and takes them into `specbench/demo/`.
"""
