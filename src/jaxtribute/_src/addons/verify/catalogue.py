"""The mistakes that are known by name: what they are, and what to write instead. `docs/guide/verify.md` shows each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kind of mistake.

    Attributes:
      name: its name in reports and in the guide.
      what: what is wrong, in a clause.
      advice: what to write instead; `{part}` stands for an expression of the user's.
      part: that expression, where it is not known.
      in_fit: what to write instead in a step of Keras's `fit`, if that is something else.
      also_in_fit: what belongs to it there besides.
    """

    name: str
    what: str
    advice: str
    part: str = ""
    in_fit: str = ""
    also_in_fit: str = ""


# The steps of `fit` add up what is a sum over a replica's rows, and weigh what is not by their number.
_AVERAGED = (
    "divide by the rows of all replicas: count = jd.get_replica_context().all_reduce('SUM', x.shape[0]), then {part} "
    "in place of the mean. fit adds up what is a sum over the rows: reduce nothing else"
)
_SHARE = (
    "; if every replica has the whole loss then, its share by rows: loss * x.shape[0] / "
    "jd.get_replica_context().all_reduce('SUM', x.shape[0])"
)


_PATTERNS = (
    Pattern(
        "local-mean",
        "the mean over this replica's rows is taken for the mean over the batch: the sum over the replicas is too "
        "large by their number",
        "divide by the rows of all replicas: count = jd.get_replica_context().all_reduce('SUM', x.shape[0]), then "
        "{part} in place of the mean. Reduce gradients, and the loss that is returned, with 'SUM'. Only if every "
        "batch, also the last one, divides by every number of replicas that you will use: leave the mean, and reduce "
        "both with 'MEAN', as in optimizer.apply_gradients(gradients, 'MEAN')",
        "jd.nn.compute_average_loss(per_example_losses, global_batch_size=count)",
        _AVERAGED,
    ),
    Pattern(
        "mean-of-means",
        "the mean over this replica's rows counts as much as that of a replica with more rows: right for batches that "
        "divide, wrong for others",
        "divide by the rows of all replicas: count = jd.get_replica_context().all_reduce('SUM', x.shape[0]), then "
        "{part} in place of the mean, and 'SUM' in place of 'MEAN' where it is reduced. For a metric: "
        "strategy.reduce('MEAN', per_example_values, axis=0). For statistics of layers: batches that divide "
        "(drop_remainder=True)",
        "jd.nn.compute_average_loss(per_example_losses, global_batch_size=count)",
        f"{_AVERAGED}. For a metric: a value for each row",
    ),
    Pattern(
        "default-batch-size",
        "the loss is divided by this replica's rows times the number of replicas, as compute_average_loss does without "
        "global_batch_size: right for batches that divide, wrong for others",
        "give it the rows of all replicas: count = jd.get_replica_context().all_reduce('SUM', x.shape[0]), then "
        "{part}; or the size of the whole batch that the program knows",
        "jd.nn.compute_average_loss(per_example_losses, global_batch_size=count)",
    ),
    Pattern(
        "local-count",
        "this replica's sum is divided by this replica's own count (of tokens, sample weights or examples)",
        "divide by the count of all replicas: jd.get_replica_context().all_reduce('SUM', {part}). The quotients are "
        "then parts of the whole: add them up ('SUM'), and the gradients, as apply_gradients does by default, and "
        "divide by no number of replicas",
        "what this line divides by",
        "divide by the count of all replicas: jd.get_replica_context().all_reduce('SUM', {part}). fit adds up what is "
        "a sum over the rows: reduce nothing else",
    ),
    Pattern(
        "local-total",
        "this replica's part of a sum is taken for the sum: what is made of it is not linear, so that it cannot be "
        "added up afterwards",
        "all-reduce the sum first: total = jd.get_replica_context().all_reduce('SUM', {part}), and compute with the "
        "total. Every replica has the whole then: divide a loss by num_replicas_in_sync, and reduce with 'SUM'",
        "part",
        also_in_fit=_SHARE,
    ),
    Pattern(
        "batch-statistics",
        "statistics of this replica's rows alone stand for those of the batch",
        "take them over all replicas: jd.get_replica_context().all_reduce('MEAN', {part}); for a variance also of the "
        "squares. For batches that do not divide all-reduce sums, and divide by all_reduce('SUM', x.shape[0]). In "
        "Keras's fit BatchNormalization(synchronized=True), in Flax BatchNorm(axis_name=jd.REPLICA_AXIS)",
        "x.mean(0)",
        also_in_fit=_SHARE,
    ),
    Pattern(
        "gradient-before-reduction",
        "this replica's gradients are not those of the batch yet: a norm, a clip or something else that is not "
        "linear comes before the sum",
        "reduce first: gradients = jd.get_replica_context().all_reduce('SUM', gradients), do this with the sum, and "
        "optimizer.apply_gradients(gradients, reduce_op=None). To clip, leave it out here, and make "
        "jd.Optimizer(optax.chain(optax.clip_by_global_norm(...), ...), variables), which clips the sum",
        in_fit="leave it to the optimizer, which is given the reduced gradients: global_clipnorm= or clipnorm= of "
        "keras.optimizers",
    ),
    Pattern(
        "counted-on-each-replica",
        "every replica adds this whole term, which depends on no rows (such as a regularizer): the sum has it once for "
        "each replica",
        "jd.nn.scale_regularization_loss({part}), which divides by the number of replicas; what counts steps is not "
        "reduced",
        "term",
        "this replica's share by rows: {part} * x.shape[0] / jd.get_replica_context().all_reduce('SUM', x.shape[0]); "
        "or a regularizer of a layer, which fit counts once",
    ),
    Pattern(
        "whole-on-each-replica",
        "every replica adds the whole of what is made of rows that all_gather or all_reduce has brought together (such "
        "as a loss of all gathered rows): the sum has it once for each replica",
        "divide it by the number of replicas, {part} / jd.get_replica_context().num_replicas_in_sync, and reduce it, "
        "and gradients, with 'SUM'",
        "loss",
        "this replica's share by rows: {part} * x.shape[0] / jd.get_replica_context().all_reduce('SUM', x.shape[0])",
    ),
    Pattern(
        "noise-on-each-replica",
        "every replica adds noise to its part of a sum: the sum has the noise once for each replica",
        "add it after the sum: gradients = jd.get_replica_context().all_reduce('SUM', gradients), then the noise, of "
        "one key on all replicas, and optimizer.apply_gradients(gradients, reduce_op=None)",
    ),
    Pattern(
        "same-random-numbers",
        "all replicas draw the same random numbers for different rows, such as one dropout mask",
        "a key of each replica: key = jd.get_replica_context().fold_in(key), or of each example: .example_keys(key, n)",
    ),
    Pattern(
        "reduced-twice",
        "what is the same on all replicas already is added up again",
        "reduce once: leave one of the two reductions out, or optimizer.apply_gradients(gradients, reduce_op=None) for "
        "gradients that are reduced",
    ),
    Pattern(
        "mean-of-sums",
        "the replicas' values are parts of a sum, and their mean divides it by the number of replicas once more",
        "reduce them with 'SUM'; in a train_step or compute_loss of Keras, which averages, take the mean of the rows; "
        "give a metric of Keras that averages the values of the rows",
    ),
    Pattern(
        "sum-of-means",
        "the replicas' values are means, and are added up",
        "strategy.reduce('MEAN', per_example_values, axis=0), which is exact for all batches; or 'MEAN' in place of "
        "'SUM'",
    ),
    Pattern(
        "scaled-by-replicas",
        "the number of replicas is a factor that the reduction does not take back",
        "leave the factor out: with 'SUM' divide by the global batch size alone, with 'MEAN' by this replica's rows "
        "alone",
        in_fit="leave the factor out: fit adds up what is a sum over the rows, and weighs a mean by their number",
    ),
    Pattern(
        "pairs-of-rows",
        "rows are paired with the rows of this replica alone, such as the negatives of a contrastive loss",
        "gather the others' rows: everyone = jd.get_replica_context().all_gather(rows, axis=0), and compare rows with "
        "everyone. Where the own ones begin there, numbers-of-rows in docs/guide/verify.md has for all batches",
    ),
    Pattern(
        "gathered-without-gradients",
        "rows are gathered without their gradients, and this replica's own are put back: what the losses of the other "
        "replicas make of its rows is lost",
        "leave jax.lax.stop_gradient and the own rows out: jd.get_replica_context().all_gather(rows, axis=0) has the "
        "gradients of all replicas' losses; reduce with 'SUM'",
    ),
    Pattern(
        "softmax-over-batch",
        "a softmax or logsumexp over the batch sees this replica's rows alone",
        "gather first: jd.get_replica_context().all_gather(scores, axis=0)",
        also_in_fit=_SHARE,
    ),
    Pattern(
        "extreme-over-batch",
        "a maximum, minimum or the like over the batch sees this replica's rows alone",
        "take it over the replicas too: jd.get_replica_context().all_gather({part}[None], axis=0).max(axis=0)",
        "local.max()",
        also_in_fit=_SHARE,
    ),
    Pattern(
        "order-of-rows",
        "rows are sorted, accumulated, shifted or picked among this replica's rows alone",
        "gather first, jd.get_replica_context().all_gather(rows, axis=0), and take this replica's rows of the result",
    ),
    Pattern(
        "numbers-of-rows",
        "rows are numbered from this replica's first row on",
        "add the number of this replica's first row: with context = jd.get_replica_context(), counts = "
        "context.all_gather(jnp.array([x.shape[0]]), axis=0), it is jnp.where(jnp.arange(counts.size) < "
        "context.replica_id_in_sync_group, counts, 0).sum()",
    ),
    Pattern(
        "rows-by-replica",
        "the replica's number decides what becomes of its rows: on another number of replicas the same row is treated "
        "otherwise",
        "decide by the row: by its number in the whole batch (numbers-of-rows in docs/guide/verify.md), by a column of "
        "the batch, or by random numbers of jd.get_replica_context().example_keys(key, x.shape[0])",
    ),
    Pattern(
        "rows-of-replica",
        "the number of this replica's rows stands for that of the batch",
        "count the rows of all replicas: jd.get_replica_context().all_reduce('SUM', x.shape[0]), or the batch size "
        "that the program knows",
    ),
    Pattern(
        "not-reduced",
        "the state that the next call is given is this replica's own, made of its own rows: every replica trains a "
        "model of its own",
        "reduce what changes the state first: gradients = jd.get_replica_context().all_reduce('SUM', gradients), of a "
        "loss by jd.nn.compute_average_loss(..., global_batch_size=...); statistics likewise, with 'MEAN'",
    ),
    Pattern(
        "not-distributed",
        "no argument of strategy.run is distributed: every replica computes with the whole batch",
        "pass the batch as an argument, to the step and to strategy.run: for batch in "
        "strategy.experimental_distribute_dataset(batches): step(batch); or for arrays at hand "
        "strategy.experimental_distribute_values_from_function(lambda context: this replica's rows)",
    ),
    Pattern(
        "decided-by-replica",
        "this replica's own values decide what becomes of what all replicas share: replicas part as soon as one of "
        "them decides otherwise",
        "decide by what is reduced: ask the reduced gradients, or count the replicas that object, "
        "jd.get_replica_context().all_reduce('SUM', jnp.where(right, 0, 1)) == 0",
    ),
    Pattern(
        "own-random-numbers",
        "each replica draws other random numbers for what all replicas share: a mean of them is closer to 0 than one "
        "draw, and a sum farther",
        "draw with one key on all replicas: leave fold_in of the replica's number out here",
    ),
    Pattern(
        "one-replica",
        "the value of one replica stands for that of all",
        "combine the replicas' values: jd.get_replica_context().all_reduce('MEAN', {part}), or 'SUM' if they are parts "
        "of a sum; or make the variable with aggregation='mean' or 'sum'. Around replicas: strategy.reduce('MEAN', "
        "value, axis=None)",
        "value",
    ),
    Pattern(
        "unknown",
        "here the replicas' values are no longer rows, sums or copies of what one device has",
        "look at what this line takes from the batch, and reduce or gather it over the replicas first",
    ),
)
CATALOGUE = {pattern.name: pattern for pattern in _PATTERNS}
