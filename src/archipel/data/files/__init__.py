"""Users' files: one reader for each file type, one set of errors, one limit on sizes.

Every reader returns plain arrays, or raises a ValueError that names the file, what is wrong with it, and what to do.
Nothing in a file is executed.
"""
