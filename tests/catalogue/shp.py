"""Shapes and types of tensors: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "SHP-1",
        "S1",
        "a parameter without axes",
        "clipped and noised as one number of the vector",
    ),
    Case(
        "SHP-2",
        "S1",
        "whole numbers and booleans among the arrays, `num_batches_tracked`",
        "refused by name; in a federation they may stay as they were sent, neither in the norm nor in the "
        "model that comes back",
    ),
    Case(
        "SHP-3",
        "S1",
        "running statistics of batch norm",
        "refused by name with what to use instead; in a federation they may stay as they were sent",
    ),
    Case(
        "SHP-4",
        "S1",
        "updates in float16 or bfloat16",
        "differences, norms, sums and noise are in float64 or whole steps; the noise is that stated, to 1 %",
    ),
    Case(
        "SHP-5",
        "S1",
        "another shape, one that would broadcast, a transposed array",
        "counts as a reply that never came; the round continues",
    ),
    Case(
        "SHP-6",
        "S1",
        "names in another order, missing, too many, or others",
        "matched by name in any order; else as a reply that never came",
    ),
    Case(
        "SHP-7",
        "S2",
        "big-endian or column-wise bytes, labels that lie, very many tiny tensors",
        "taken for what they hold, or as a reply that never came",
    ),
    Case(
        "SHP-8",
        "S3",
        "tied weights, frozen layers, tensors of no size",
        "tied weights count once, frozen ones are never released, tensors of no size pass",
    ),
    Case(
        "SHP-9",
        "S3",
        "complex, long double, text, pickled or other tensors",
        "refused by name, or as a reply that never came",
    ),
    Case(
        "SHP-10",
        "S1",
        "a population trains the model itself, or somebody changes it between rounds",
        "refused before the cost of the round is recorded; the trained parameters are put back to what releases have "
        "made of them",
    ),
    Case(
        "SHP-11",
        "S1",
        "a sum of one number, which torch would repeat over its row of noise",
        "refused where noise and sum meet",
    ),
]
