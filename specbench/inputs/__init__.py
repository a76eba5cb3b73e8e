"""What did the user ask for? pairings.yaml, prompts and method parameters, read strictly.

In go files and words of the command line, out come frozen values; an error names file and line.
No torch. Open `config.py` for pairings and `workloads.py` for prompts first.
"""
