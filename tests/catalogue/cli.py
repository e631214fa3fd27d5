"""Clients: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "CLI-1",
        "S1",
        "a client sends an update a million times too long, as if it had never clipped",
        "the server clips it again; what it adds is at most the clip norm, in whole steps of the lattice; over all its "
        "rounds at most the sensitivity",
    ),
    Case(
        "CLI-2",
        "S1",
        "a client says it has 10¹², −8, 0 or NaN examples",
        "every client weighs the same: the number is not looked at, and not a bit of the release changes",
    ),
    Case(
        "CLI-3",
        "S1",
        "a client answers twice in a round",
        "the first answer counts, the second is refused and logged",
    ),
    Case(
        "CLI-4",
        "S1",
        "an answer to an earlier round comes late",
        "refused, since each round's messages bear an identifier of their own; it is never added to a later sum",
    ),
    Case(
        "CLI-5",
        "S1",
        "up to 90 % of the clients drop out",
        "the sum is divided by the planned number of clients, and the noise stays within 1 % of what is stated; where "
        "clients bring the noise along, a round with fewer than min_survivors of them is aborted: its cost is spent, "
        "and it is not released",
    ),
    Case(
        "CLI-6",
        "S2",
        "30 % of the clients are hostile or faulty, in any of the ways of NUM, SHP and CLI",
        "every round is released and the honest part of its sum is exact; under encryption what is no contribution is "
        "refused by the sender's name, and what is only seen when the sum is opened aborts the round",
    ),
    Case(
        "CLI-7",
        "S2",
        "a client is a million times slower than the others, or never answers",
        "the round waits until its timeout, which the network gets; after it the client is a missing answer",
    ),
    Case(
        "CLI-8",
        "S2",
        "an answer holds far more than the model, or a client answers 100,000 times",
        "an array is compared with the model by its header and its length before it is copied; of answers without end a few"
        " faults are noted. What Flower itself receives, it holds",
    ),
    Case(
        "CLI-9",
        "S4",
        "a client returns the server's own model, or moves it by next to nothing",
        "counts as an update of zero or next to it: that costs accuracy, and no privacy",
    ),
    Case(
        "CLI-10",
        "S1",
        "clients send metrics such as losses and counts",
        "neither the metrics of a round nor the log nor the wrapped strategy get them; federated evaluation is off until "
        "its exactness is asked for, and then it is stated as not covered",
    ),
    Case(
        "CLI-11",
        "S1",
        "several nodes are one client (a Sybil), so that fewer clients take part than must",
        "nodes with one key are one client, of whom one is asked; where clients bring the noise along and fewer than "
        "min_survivors answer, nothing is released. Noise of the server hides each client however few take part",
    ),
    Case(
        "CLI-12",
        "S4",
        "the text of an error holds data, escape codes, line ends or 10 MB",
        "it is not repeated in training; what hubbub says of a fault is cut to 200 characters and escaped",
    ),
    Case(
        "CLI-13",
        "S1",
        "what one client's or example's own computation raises in this process: a target that is no class, a row outside a "
        "table, a file that is gone, an error of a loss",
        "it adds an update of zero, as where a client far away fails; no bit of what others add is another, every round is "
        "released, and the operator alone learns of it, by the logger hubbub and a private number",
    ),
    Case(
        "CLI-14",
        "S2",
        "what fails for every client or example, or what the machine has not enough of",
        "refused before the first round, on made-up examples of the form of the data; memory that runs out stops the run, "
        "whoever asked for it, and so does whoever ends the process",
    ),
    Case(
        "CLI-15",
        "S1",
        "a model or a loss that carries one client's data to the next: attributes, running means, generators that are shared",
        "refused before the first round: on made-up examples, what one client adds must be the same after another one",
    ),
]
