"""The checks of `check_derivatives`, each for one property of the derivatives of any function."""

from collections.abc import Sequence

from slopecheck.calls import REPEATS, Calls
from slopecheck.differences import ELEMENTS, GROUPS, Differences
from slopecheck.numbers import Numbers


class Checks(Differences, Calls, Numbers):
    """The checks of one function up to an order of derivatives, with a method for each kind."""

    def thin(self, share: float) -> None:
        """Compare fewer elements and repeat fewer calls, so that about this share of all calls is made."""
        if share < 1:
            self.alone_of_each, self.groups_of_each = max(4, int(share * ELEMENTS)), max(1, int(share * GROUPS))
            self.repeats = max(3, int(share * REPEATS))

    def estimate_calls(self, kinds: Sequence[str]) -> int:
        """Return about how many calls checks of these kinds make."""
        orders, total = len(self.orders), 0
        for x in (x for x in self.p.x if x.size):
            elements = self.single(x.size)
            elements += min(x.size - elements, self.groups_of_each)
            layouts = len(self._layouts(x, self.p.inputs[self.p.wanted[0]])) * (1 + orders) * 2
            total += kinds.count("differences") * (150 + 13 * elements) + layouts * orders * ("layout" in kinds)
            total += 90 * ("nan" in kinds)
        return total + (1 + orders) * (self.repeats + 40) * ("repeat" in kinds)
