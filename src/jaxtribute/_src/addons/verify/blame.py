"""Says what kind of mistake a step makes where its replicas part from one device, by the form of its operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxtribute._src.addons.verify.advising import part_of
from jaxtribute._src.addons.verify.averages import means
from jaxtribute._src.addons.verify.catalogue import CATALOGUE
from jaxtribute._src.addons.verify.closed import closed_over, is_own
from jaxtribute._src.addons.verify.comparing import Difference, inner_of, value_of
from jaxtribute._src.addons.verify.culprit import UNREDUCED, Culprit
from jaxtribute._src.addons.verify.depending import firsts, of_own_rows, picks_replica
from jaxtribute._src.addons.verify.instead import FOR_EACH_ROW, instead
from jaxtribute._src.addons.verify.machine import RANDOM
from jaxtribute._src.addons.verify.mixing import (
    among_rows,
    cut,
    dividing,
    is_divided_by_own,
    is_local_times_replicas,
    joined_wrongly,
    numbered,
    of_lengths,
    quotient_by,
    sums_rows,
    times_rows,
)
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.pairing import ADDS, SUMS, Runs
from jaxtribute._src.addons.verify.relations import Kind, is_fraction
from jaxtribute._src.addons.verify.sources import Place
from jaxtribute._src.addons.verify.stage import Outcome
from jaxtribute._src.addons.verify.trail import Trail
from jaxtribute._src.addons.verify.wholes import WHOLE, added_whole, is_of_function, place_whole

_CUTS = frozenset({"slice", "dynamic_slice", "split", "reshape", "gather", "pad"})
_SCATTERS = frozenset({"reduce_scatter", "psum_scatter"})


class Suspects:
    """The operations of a step that may be to blame.

    Args:
      one: the run on one device.
      found: that on replicas; both have kept what they computed.
      apart: what differs.
      others: names of what differs for another reason.
    """

    def __init__(self, one: Outcome, found: Outcome, apart: Sequence[Difference], others: Sequence[str] = ()) -> None:
        self._runs = Runs(one, found)
        self._lines, self._apart = found.lines, apart
        names = {difference.name for difference in apart} | set(others)
        self._wrong = [
            number
            for difference in apart
            for number in self._runs.makers(value_of(one, difference))
            # What the code around has changed once more says nothing of the replicas' own write.
            or self._runs.makers(inner_of(one, difference))
        ]
        right = [value for variable, value in one.written.items() if variable.name.removesuffix(":0") not in names] + [
            value
            for path, value in one.outputs.items()
            # What each replica has for itself was not compared.
            if f"the result{path}" not in names and not isinstance(found.outputs.get(path), tuple)
        ]
        self._right = self._runs.upstream(
            [number for value in right for number in self._runs.makers(value)], evidence=True
        )
        self._trail = Trail(self._runs, self._wrong)

    def culprit(self) -> Culprit:
        """The first mistake."""
        if all(one.own for one in self._apart):
            return self._never_reduced()
        leaves = self._trail.leaves
        if not leaves:
            return (
                self._counted()
                or self._numbered()
                or self._merged()
                or self._unreduced()
                or self._around()
                or self._unknown()
            )
        if one_number := times_rows(self._runs, self._trail.chain, leaves):
            culprit = self._named("batch-statistics", *one_number)
            culprit.instead, culprit.also_in_fit = FOR_EACH_ROW, True
            return culprit
        # What one device computes in a way of its own, as of a synchronized layer, cannot be compared.
        paired = [leaf for leaf in leaves if all(self._runs.others(leaf))]
        first, *others = paired or leaves
        scans = (leaf for leaf in leaves if "associative_scan" in getattr(self._runs.record(leaf).place, "text", ""))
        if (scan := next(scans, None)) is not None:
            return self._named("order-of-rows", scan)
        if self._runs.record(first).name in _CUTS:
            # Behind rows that are taken piece by piece a number that is a multiple still says something.
            first = next((leaf for leaf in others if self._runs.relation(leaf).kind is not Kind.NONE), first)
        if self._runs.record(first).name == "iota":
            # Numbers of rows go with what they number: pairs of this replica's rows are numbered so, too.
            first = next((leaf for leaf in others if not self._is_numbering(leaf)), first)
        size = dividing(self._runs, first, self._trail.chain) if of_lengths(self._runs, first) else None
        return self._judged(first) if size is None else self._of_means(size)

    def behind(self) -> frozenset[str]:
        """The lines behind what differs: all, if code around the replicas has computed it of what they gave."""
        numbers = self._runs.upstream(self._wrong) if self._wrong else range(len(self._runs.tape.records))
        return frozenset(str(self._runs.record(number).place) for number in numbers)

    def is_own(self) -> bool:
        """True if each replica has something for itself in what differs."""
        return is_own(self._runs, self._wrong)

    def closed_over(self) -> Culprit | None:
        """The use of a batch that the program closes over; None if it closes over none."""
        number = closed_over(self._runs, self._wrong)
        return None if number is None else Culprit(CATALOGUE["not-distributed"], self._runs.record(number).place)

    def _is_numbering(self, leaf: int) -> bool:
        """True for numbers of rows, and for what only the derivative makes of them."""
        return self._runs.record(leaf).name == "iota" or self._runs.record(leaf).backwards

    def _numbered(self) -> Culprit | None:
        """Blames what the replica's number does to rows, or rows that are left out where one device has all."""
        for number in sorted(self._trail.chain):
            found = cut(self._runs, number)
            if found is not None:
                return Culprit(CATALOGUE[found[0]], found[1])
        return self._named(*by_number) if (by_number := numbered(self._runs, self._trail.chain)) else None

    def _judged(self, leaf: int) -> Culprit:
        record, relation = self._runs.record(leaf), self._runs.relation(leaf)
        # Only from here on is something none of the usual relations; what one device alone computes has none.
        none = (number for number in self._trail.chain if self._runs.relation(number).kind is Kind.NONE)
        broken = min((number for number in none if number >= leaf and all(self._runs.others(number))), default=None)
        summed = min(
            (number for number in self._trail.chain if number > leaf and self._runs.is_sum(number)), default=None
        )
        if broken is not None and summed is not None and broken >= summed:
            broken = None  # whatever comes after the sum is not to blame
        before = self._gradient_used(broken)
        if before is not None:
            return self._counted_early(before) or self._named("gradient-before-reduction", before)
        if relation.kind is Kind.NONE:
            return self._broken(leaf)
        collective = self._wrong_collective(leaf)
        if collective is not None:
            return collective
        if self._adds_up(leaf):
            return self._summed_twice(leaf)
        if self._runs.is_mean(leaf):
            return self._named("mean-of-sums", leaf)
        if self._runs.counts_rows(leaf):
            return self._named("rows-of-replica", leaf)
        counts = self._runs.counts_replicas(leaf)
        if (relation.kind in (Kind.SCALED, Kind.SUM) and relation.factor < 1 - 1e-9) or counts:
            return (self._counted_times(leaf) if counts else None) or self._named("scaled-by-replicas", leaf)
        if record.name == "div" and self._runs.count_of(self._runs.makers_of(leaf, 1)) is not None:
            return self._local_count(leaf)
        if broken is not None and not self._runs.is_sum(broken):
            # A mean that is added to a part of a sum is no statistics.
            after = self._runs.record(broken)
            rows = any(self._runs.operand(broken, place).kind is Kind.ROWS for place in range(len(after.operands)))
            # A gradient sees a value of the way forward only if something else than a sum is made of it.
            derived = after.backwards and record.backwards and not (rows and sums_rows(self._runs, leaf))
            if not derived and (rows or after.name not in ADDS):
                return self._named("batch-statistics", leaf, broken)
        return self._of_means(leaf)

    def _of_means(self, leaf: int) -> Culprit:
        uneven = len(set(self._runs.arrangement.sizes)) > 1
        later = min(
            (number for number in self._trail.chain if number > leaf and self._runs.is_sum(number)), default=None
        )
        written = [one.variable for one in self._apart if one.variable is not None]
        if written and all(map(firsts, written)) and later is None:
            return self._named("one-replica", leaf)
        if written and not any(one.trainable or one.derived for one in written) and leaf not in of_own_rows(self._runs):
            return self._named("counted-on-each-replica", leaf)
        if uneven:
            return self._named("mean-of-means", leaf, later)
        summed = later is not None and self._runs.record(later).name.startswith("strategy.reduce SUM")
        trained = any(one.state for one in self._apart) or self._runs.differentiated(leaf)
        return self._named("sum-of-means" if summed and not trained else "local-mean", leaf, later)

    def _gradient_used(self, broken: int | None) -> int | None:
        """The operation that breaks the relation, if it makes something else of gradients that are not reduced yet."""
        if broken is None:
            return None
        record = self._runs.record(broken)
        if record.backwards or record.eqn is None or record.name in SUMS or self._runs.after_sum(broken):
            return None
        if self._added_term(broken) is not None:
            return None
        for place in range(len(record.operands)):
            makers = self._runs.makers_of(broken, place)
            partial = self._runs.operand(broken, place).kind in (Kind.SUM, Kind.MEAN, Kind.SCALED)
            # What replicas reduce, and one device does not, has been reduced here.
            if makers and partial and self._runs.from_backward(makers[0]) and not self._runs.is_between(broken, place):
                return broken
        return None

    def _broken(self, leaf: int) -> Culprit:
        """An operation whose operands are right."""
        if self._runs.cuts_sum(leaf):
            return self._named("gathered-without-gradients", leaf)
        if left_out := cut(self._runs, leaf):
            return Culprit(CATALOGUE[left_out[0]], left_out[1])
        if self._runs.counts_rows(leaf):
            return self._named("rows-of-replica", leaf)
        kinds = [self._runs.operand(leaf, place).kind for place in range(len(self._runs.record(leaf).operands))]
        return (
            self._of_one_replica(leaf, kinds)
            or self._of_partial_sum(leaf, kinds)
            or (self._in_pieces(leaf) if Kind.ROWS in kinds else None)
            or self._named(among_rows(self._runs, leaf, self._trail.chain), leaf)
        )

    def _of_one_replica(self, leaf: int, kinds: Sequence[Kind]) -> Culprit | None:
        """A count, a term or a choice that each replica has for itself."""
        record = self._runs.record(leaf)
        if record.name == "div" and kinds[-1] is Kind.SUM and np.ndim(record.operands[-1]) == 0:
            return self._local_count(leaf)
        if any(self._runs.record(maker).name == "axis_index" for maker in self._runs.all_makers(leaf)):
            return self._named("one-replica", leaf)
        if record.name in ADDS and Kind.SUM in kinds and Kind.SAME in kinds:
            quotient = quotient_by(self._runs, leaf, self._trail.chain)
            if quotient is not None:
                return self._local_count(quotient)
            if is_divided_by_own(self._runs, leaf):
                return self._named("local-total", self._runs.makers_of(leaf, kinds.index(Kind.SUM))[0], leaf)
            reduction = self._averages()
            if reduction is not None:
                return self._named("mean-of-sums", reduction, self._runs.makers_of(leaf, kinds.index(Kind.SUM))[0])
            if any(one.variable is not None and one.variable.aggregation.name == "MEAN" for one in self._apart):
                return self._named("local-total", self._runs.makers_of(leaf, kinds.index(Kind.SUM))[0], leaf)
            term = self._added_term(leaf)
            return self._regularizer(leaf, term) if term is not None else None
        if record.name in ("select_n", "mul") and picks_replica(self._runs, leaf):
            return self._named("one-replica", leaf)
        return None

    def _added_term(self, number: int) -> int | None:
        """The place of a term that is the same on all replicas, and is added to a part of a sum."""
        record = self._runs.record(number)
        kinds = [self._runs.operand(number, place).kind for place in range(len(record.operands))]
        if record.name not in ADDS or not {Kind.SUM, Kind.SAME} <= set(kinds):
            return None
        place = kinds.index(Kind.SAME)
        # A number that is added to a part of a sum is no term of its own; the gradient of a term is one.
        return place if record.backwards or self._runs.is_made_of_arrays(self._runs.makers_of(number, place)) else None

    def _averages(self) -> int | None:
        """The division of a mean over the replicas on the way to what is wrong."""
        return min((number for number in self._trail.chain if self._runs.is_mean(number)), default=None)

    def _of_partial_sum(self, leaf: int, kinds: Sequence[Kind]) -> Culprit | None:
        """A replica's part of a sum that stands for the sum."""
        if Kind.SUM not in kinds:
            return None
        record = self._runs.record(leaf)
        if is_local_times_replicas(self._runs, leaf):
            return self._named("mean-of-means", leaf)
        quotient = quotient_by(self._runs, leaf, self._trail.chain)
        if quotient is not None:
            return self._local_count(quotient)
        partial = self._runs.makers_of(leaf, kinds.index(Kind.SUM))
        if Kind.ROWS in kinds and partial and not record.backwards:
            wrongly = joined_wrongly(self._runs, partial[0])
            return self._named(*wrongly) if wrongly else self._named("batch-statistics", partial[0], leaf)
        divides = record.backwards and record.name in ("div", "integer_pow", "pow") and self._runs.forwards(leaf, "div")
        source = partial[0] if partial else None
        return self._named("local-count" if divides else "local-total", leaf, source)

    def _in_pieces(self, leaf: int) -> Culprit | None:
        """A mistake behind a step that takes its rows piece by piece: other pieces on replicas, so numbers say little.

        What divides by the number of a piece's rows, or by a number that was counted, is told by its form.
        """
        if self._runs.record(leaf).name not in _CUTS:
            return None
        ratio = self._runs.arrangement.rows / self._runs.arrangement.sizes[0]
        for number in sorted(number for number in self._trail.chain if number > leaf):
            record, other = self._runs.record(number), self._runs.other(0, number)
            if other is None or record.name not in ("div", "mul"):
                continue
            divisor, theirs = record.operands[-1], other.operands[-1]
            if np.ndim(divisor) or is_key(divisor) or np.ndim(theirs):
                continue
            makers = self._runs.makers_of(number, len(record.operands) - 1)
            if not makers:
                quotient = float(divisor) / float(theirs) if float(theirs) else 0.0
                near = max(quotient, 1 / quotient if quotient else 0.0)
                if near > 1.2 and abs(near / ratio - 1) < 0.5:
                    return self._of_means(number)
            elif record.name == "div" and self._runs.is_counted(makers):
                if any(self._runs.record(one).backwards for one in self._runs.upstream(makers)):
                    # No count, but the norm of a gradient.
                    norm = self._runs.count_of(makers)
                    return self._named("gradient-before-reduction", number if norm is None else norm, number)
                return self._local_count(number)
        return None

    def _local_count(self, quotient: int) -> Culprit:
        # The derivative of a logarithm divides, too, by what is no count.
        derived = self._runs.record(quotient).backwards and not self._runs.forwards(quotient, "div")
        counted = self._runs.count_of(self._runs.makers_of(quotient, 1))
        return self._named("local-total" if derived else "local-count", quotient, counted)

    def _counted_early(self, quotient: int) -> Culprit | None:
        """A gradient that is scaled by a replica's own count, or by its number of rows, before it is reduced."""
        scaled = self._runs.shares(quotient)
        if scaled is not None and any(theirs != scaled[0] for theirs in scaled[1]):
            return self._named("rows-of-replica", quotient)
        makers = self._runs.makers_of(quotient, 1) if self._runs.record(quotient).name == "div" else ()
        if not self._runs.is_counted(makers) or any(map(self._runs.from_backward, self._runs.upstream(makers))):
            return None
        return self._local_count(quotient)

    def _counted_times(self, leaf: int) -> Culprit | None:
        """A count of a replica's own, times the number of replicas, by which something is divided."""
        quotient = dividing(self._runs, leaf, self._trail.chain) if self._runs.is_counted([leaf]) else None
        return None if quotient is None else self._local_count(quotient)

    def _regularizer(self, leaf: int, place: int) -> Culprit:
        """A value of the variables alone that is added to each replica's share."""
        makers = self._runs.makers_of(leaf, place)
        source = makers[0] if makers else leaf
        if self._runs.record(source).backwards:
            source, leaf = self._added(source) or (source, leaf)
        if any(self._runs.record(number).name in RANDOM for number in self._runs.upstream([source])):
            return self._named("noise-on-each-replica", source, leaf)
        if told := added_whole(self._runs, source, leaf):
            return self._named(*told)
        return self._named("counted-on-each-replica", source, self._runs.other_line(source) or leaf)

    def _added(self, derived: int) -> tuple[int, int] | None:
        """The term whose derivative an operation belongs to, and its addition on the way forward."""
        line = self._runs.record(derived).place
        for number, record in enumerate(self._runs.tape.records):
            term = None if record.backwards else self._added_term(number)
            makers = () if term is None else self._runs.makers_of(number, term)
            if makers and any(self._runs.record(one).place == line for one in self._runs.upstream(makers)):
                return makers[0], number
        return None

    def _adds_up(self, leaf: int) -> bool:
        """True for a sum over the replicas, and the derivative of that which an optimizer makes of a function."""
        record = self._runs.record(leaf)
        if record.name in SUMS | _SCATTERS or record.name.startswith("strategy.reduce SUM"):
            return True
        return record.backwards and is_of_function(self._runs, leaf)

    def _summed_twice(self, leaf: int) -> Culprit:
        record, makers = self._runs.record(leaf), self._runs.makers_of(leaf, 0)
        value = next(iter(makers), leaf)
        if told := added_whole(self._runs, leaf if record.backwards else value, leaf):
            return self._named(*told)
        # What no data has gone into was never a part of a sum.
        if (makers or record.name not in SUMS | _SCATTERS) and self._runs.from_backward(value):
            return self._named("counted-on-each-replica", value, leaf)
        reduced = [number for number in self._runs.upstream(makers) if self._runs.is_sum(number)]
        if not reduced and any(self._runs.relation(number).kind is Kind.ROWS for number in self._runs.upstream(makers)):
            # Of the rows of each replica, and by chance the same on all.
            return self._named("sum-of-means", leaf, makers[0] if makers else None)
        return self._named("reduced-twice", leaf, max(reduced, default=None))

    def _wrong_collective(self, leaf: int) -> Culprit | None:
        """The reduction that is to blame, where the value of each replica is right for other results."""
        line = self._runs.record(leaf).place
        if line is None or len(set(self._runs.arrangement.sizes)) > 1 or any(one.state for one in self._apart):
            return None
        elsewhere = {
            record.place.line
            for record in map(self._runs.tape.records.__getitem__, self._right)
            if record.place is not None and record.place.file == line.file
        }
        scaled = [
            number
            for number in self._right
            if (place := self._runs.record(number).place) is not None
            and (place.file, place.line) == (line.file, line.line)
            and not self._runs.relation(number).good
        ]
        if not scaled or line.line not in elsewhere:
            return None
        lines = {str(self._runs.record(number).place) for number in self._right if self._runs.is_sum(number)}
        sums = sorted(number for number in self._trail.chain if number > leaf and self._runs.is_sum(number))
        # Those that right results go through as well are not to blame, nor those of what is a mean no more.
        passed = any(str(self._runs.record(number).place) in lines for number in sums)
        wrong = bool(sums) and not passed and self._runs.operand(sums[0], 0).kind is not Kind.NONE
        return self._named("sum-of-means", sums[0], leaf) if wrong else None

    def _merged(self) -> Culprit | None:
        """Blames what replicas reduce, and one device does not, such as gradients in Keras's own steps."""
        for number, (maker, after) in sorted(self._trail.between.items()):
            scaled = [one for one in self._runs.upstream([maker]) if self._runs.counts_replicas(one)]
            if scaled:
                return self._named("scaled-by-replicas", min(scaled), number)
            how = "SUM" if after.factor > 1 else "MEAN"
            name = UNREDUCED.get((self._runs.relation(maker).kind, how))
            if name == "counted-on-each-replica" and (told := added_whole(self._runs, maker, number)):
                return self._named(*told)
            if name is not None:
                return self._named(name, number, maker)
        return None

    def _counted(self) -> Culprit | None:
        """Blames what gives a mean of Keras a part of a sum on each replica: it has the sum, and counts the parts."""
        apart = {one.variable for one in self._apart}
        for total, count in means() if len(apart) == 1 else ():
            if apart == {count} and total in self._lines:
                return Culprit(CATALOGUE["mean-of-sums"], self._lines[total])
        return None

    def _never_reduced(self) -> Culprit:
        """Blames what first takes a gradient, or else anything, that each replica has of its own, into the state."""
        numbers = [number for number in sorted(self._runs.upstream(self._wrong)) if self._runs.record(number).eqn]
        for number in numbers:
            record = self._runs.record(number)
            if record.backwards or self._runs.is_sum(number) or self._runs.accumulates(number):
                continue
            for maker in self._runs.all_makers(number):
                own = self._runs.relation(maker).kind not in (Kind.SAME, Kind.SKIPPED)
                if own and self._runs.from_backward(maker):
                    return self._named("not-reduced", number, maker)
        for number in numbers:
            if self._runs.relation(number).kind not in (Kind.SAME, Kind.SKIPPED, Kind.ROWS):
                return self._named("not-reduced", number)
        return Culprit(CATALOGUE["not-reduced"], None)

    def _unreduced(self) -> Culprit | None:
        """Blames a value that each replica has right, and that is not put together, or not as it should be."""
        line = self._written()
        how = {one.variable.aggregation.name for one in self._apart if one.variable is not None}
        for number in self._wrong:
            kind, record = self._runs.relation(number).kind, self._runs.record(number)
            names = [UNREDUCED[kind, one] for one in how if (kind, one) in UNREDUCED]
            if kind is Kind.SAME and names and (told := added_whole(self._runs, number, number)):
                names = [told[0]]
            if kind is Kind.SUM and (record.name in ("max", "min") or "MEAN" in how):  # not always the user's to say
                names = ["local-total"]
            if names or kind in (Kind.SUM, Kind.ROWS, Kind.MEAN):
                culprit = self._named(names[0] if names else "one-replica", number)
                if line is not None and line.line != getattr(culprit.place, "line", 0):
                    culprit.place, culprit.elsewhere = line, culprit.place
                return culprit
        return None

    def _around(self) -> Culprit | None:
        """Blames what the code around the replicas makes of a value that it has reduced or gathered rightly."""
        one, other = (np.asarray(value) for value in (self._apart[0].alone, self._apart[0].others))
        numbers = range(len(self._runs.tape.records))
        outside = [number for number in numbers if self._runs.record(number).name.startswith("strategy.")]
        if not outside or self._wrong or one.shape != other.shape:
            return None
        alike = [number for number in outside if is_fraction(one, self._runs.record(number).results[0])]
        replicas = self._runs.arrangement.replicas
        scaled = any(np.allclose(one * factor, other, rtol=1e-4) for factor in (replicas, 1 / replicas))
        return self._named("scaled-by-replicas" if alike and scaled else "unknown", (alike or outside)[-1])

    def _written(self) -> Place | None:
        """The line that writes a variable that differs."""
        lines = (self._lines.get(one.variable) for one in self._apart if one.variable is not None)
        return next(filter(None, lines), None)

    def _unknown(self) -> Culprit:
        if self._apart and np.shape(self._apart[0].alone) == np.shape(self._apart[0].others):
            return Culprit(CATALOGUE["one-replica"], self._written(), guess=True)
        return Culprit(CATALOGUE["unknown"], None, guess=True)

    def _named(self, pattern: str, number: int, elsewhere: int | None = None) -> Culprit:
        record = self._runs.record(number)
        if self._runs.is_default_count(number):
            pattern = "default-batch-size"
        written = [one.variable for one in self._apart if one.variable is not None]
        if pattern == "mean-of-sums" and written and all(map(firsts, written)):
            pattern = "one-replica"  # the first one's part, and no mean
        others = self._runs.others(number)
        other = self._runs.record(elsewhere).place if elsewhere is not None else None
        culprit = Culprit(
            CATALOGUE[pattern],
            record.place,
            None if record.place is not None and other is not None and other.line == record.place.line else other,
            record.name,
            record.results[0] if record.results else None,
            [one.results[0] for one in others if one is not None and one.results],
            record.backwards,
            part_of(self._runs, pattern, number, elsewhere),
            instead(self._runs, pattern, number, self._apart, is_of_function(self._runs, number)),
        )
        return place_whole(self._runs, culprit, number) if pattern == WHOLE else culprit
