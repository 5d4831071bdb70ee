"""One part passes, the other finds something wrong."""


def parts(place):
    return ["good", "bad"]


def run(part, place, notes):
    notes.add(part, part == "good", "" if part == "good" else "two is not three", number=2)
