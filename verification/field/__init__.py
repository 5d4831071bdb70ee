"""Small functions of ours with mistakes that people have made, each beside its repaired twin.

`TEXTBOOK` holds the kinds of mistake that a check of derivatives must find; `FIELD` holds public bugs of other
projects, each as a function of our own with the same mistake. Every entry names the check of
`trigraph.testing.check_derivatives` that fails on the faulty function; the repaired one passes all of them. They need
torch.
"""

from trigraph.verification.field import autograd, geometry, indices, layouts, softmax, textbook
from trigraph.verification.field.entry import Entry, rows, verdict

TEXTBOOK: tuple[Entry, ...] = textbook.ENTRIES
FIELD: tuple[Entry, ...] = (
    *geometry.ENTRIES,
    *indices.ENTRIES,
    *softmax.ENTRIES,
    *layouts.ENTRIES,
    *autograd.ENTRIES,
)

__all__ = ["FIELD", "TEXTBOOK", "Entry", "rows", "verdict"]
