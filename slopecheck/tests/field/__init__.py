"""Small functions of ours with mistakes that people have made, each beside its repaired twin.

`TEXTBOOK` holds the kinds of mistake that a check of derivatives must find; `FIELD` holds public bugs of other
projects, each as a function of our own with the same mistake. Every entry names the check of
`slopecheck.check_derivatives` that fails on the faulty function; the repaired one passes all of them. They need
torch.
"""

from field import autograd, geometry, indices, layouts, softmax, textbook
from field.entry import Entry, entries_of, rows, verdict

TEXTBOOK: tuple[Entry, ...] = entries_of(textbook)
FIELD: tuple[Entry, ...] = entries_of(geometry, indices, softmax, layouts, autograd)

__all__ = ["FIELD", "TEXTBOOK", "Entry", "rows", "verdict"]
