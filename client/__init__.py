"""The user's side of Amend: a client of its REST API, and the ``amend`` command.

It imports no other package of the project. What it needs of them it gets over REST or by starting
a process, so that the command answers at once and does not load torch to print its help.
"""
