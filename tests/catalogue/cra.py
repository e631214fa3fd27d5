"""Crash, restart, disk: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "CRA-1",
        "S1",
        "a process is killed at any moment (kill -9)",
        "no row of noise meets two sums, the cost of every round whose noise met a sum is recorded, what was committed "
        "stays, and a kill "
        "costs one round at most",
    ),
    Case(
        "CRA-2",
        "S1",
        "a kill between record of the cost and noise, noise and file, file and record, record and world",
        "the cost is recorded each time; in the first two cases it is aborted, in the others committed, and the same bytes are "
        "served again",
    ),
    Case(
        "CRA-3",
        "S1",
        "the power is lost: what was not synced is gone, writes come in any order or in part",
        "as after a kill, at every moment of a run on a simulated disk",
    ),
    Case(
        "CRA-4",
        "S1",
        "the last record of the ledger is torn",
        "it is dropped only where it is cut or holds unwritten sectors and no release of its round exists; a whole one that "
        "lost its end of line is kept, and one that was changed is refused",
    ),
    Case(
        "CRA-5",
        "S2",
        "a checkpoint is torn or a bit of it flipped",
        "refused by its SHA-256 and by name; without its manifest, the state is made again from the releases and the keys",
    ),
    Case(
        "CRA-6",
        "S1",
        "a run is resumed with another matrix, noise, clip norm, pattern, delta, unit, model, data or one more of its settings",
        "refused; the message lists what differs, with both values, and the folder stays as it is",
    ),
    Case(
        "CRA-7",
        "S1",
        "the folder of a run is copied, and both copies are resumed",
        "each start draws a key of its own, so that no row of noise is common; a ledger that does not hold a kept head is "
        "refused, and so is one next to releases of the other copy",
    ),
    Case("CRA-8", "S1", "two processes on one run", "the second is refused by a lock; the message names the first"),
    Case(
        "CRA-9",
        "S1",
        "the ledger is rolled back or deleted, releases are kept",
        "the start is refused: the folder holds a release, a key, a checkpoint or metrics of which the ledger does not know",
    ),
    Case(
        "CRA-10",
        "S1",
        "the ledger is edited: a record changed, removed, moved or put between",
        "refused by the chain of hashes, with the line",
    ),
    Case(
        "CRA-11",
        "S2",
        "the disk is full, broken or read-only, at each call",
        "the run stops before the release leaves, names the file, and resumes when the disk is whole again",
    ),
    Case("CRA-12", "S3", "the clock is set back or ahead, the time zone changes", "nothing of a run depends on a clock"),
    Case(
        "CRA-13",
        "S2",
        "SIGTERM, SIGINT, SIGHUP, a closed pipe, a parent that dies",
        "the exit status says so; the next start aborts the round or commits it, as far as it had come; workers end",
    ),
    Case(
        "CRA-14",
        "S1",
        "the file of a key is lost, of another length, of another run, or may be read by others",
        "the run does not resume and draws no noise; the message names the file and offers a new run, whose cost adds "
        "to this one's",
    ),
    Case(
        "CRA-15",
        "S2",
        "the kept rows of noise are lost or stale",
        "refused by their SHA-256; without the manifest they are made again from the keys, bit for bit",
    ),
    Case("CRA-16", "S4", "a crash while clients train", "no cost is recorded; the round is drawn again"),
    Case(
        "CRA-17",
        "S2",
        "another processor, torch or hubbub after a restart",
        "a fingerprint of the sampler stands in the ledger: noise comes out bit for bit, or the run does not resume; "
        "known rows "
        "are tested",
    ),
    Case(
        "CRA-18",
        "S1",
        "one bit of a finished run, or of what was published, is flipped",
        "verify fails, or its line 'coverage' names the file as one that no digest binds; resume binds nothing else",
    ),
    Case(
        "CRA-19",
        "S1",
        "the whole folder is rolled back and resumed, where a hook was given the heads",
        "verify names the first kept head that the ledger does not have; each durable head was given before its release left, "
        "over crashes and outages of the hook at least once, and with required no release leaves without",
    ),
    Case(
        "CRA-20",
        "S2",
        "the disk that keeps the releases has less room than is to stay free",
        "the ledger records that releases go, before the first of them does; the run goes on, and verify misses none that went",
    ),
]
