"""What other packages need to know about the optimizers, a file for each package.

Most trainers take any torch optimizer and need nothing from here: see ``docs/recipes.md``.
"""
