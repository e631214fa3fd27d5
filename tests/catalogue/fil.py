"""Files and settings: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "FIL-1",
        "S1",
        "a matrix with NaN or infinity, a zero on its diagonal, entries above it, more bands than a sampling allows, "
        "not square, of another number of rounds, of float16, transposed",
        "refused by file, row and column, as .npy, TensorProto and strategy file; bands are counted in the matrix",
    ),
    Case(
        "FIL-2",
        "S1",
        "a valid matrix whose columns have other norms than 1, or whose sensitivity is stated too low",
        "its sensitivity is computed from its entries; a file has no field for one, and that of a foreign class is not asked",
    ),
    Case(
        "FIL-3",
        "S1",
        "a pickle in place of a matrix, a strategy, data, a key or a checkpoint, as .npy, .npz, .pt or joblib writes it",
        "refused by file; no loader runs it",
    ),
    Case("FIL-4", "S2", "an archive of a few kB that unpacks to gigabytes", "refused by its header, within 0.1 s and 512 MiB"),
    Case(
        "FIL-5",
        "S2",
        "a safetensors file of a run that is cut, or has another header length, overlapping arrays, a name twice, "
        "a flipped bit",
        "refused by file; the SHA-256 of each stands in the manifest or the ledger",
    ),
    Case(
        "FIL-6", "S1", "JSON with NaN, 1e999, a name twice, 10⁵ levels, a number of 10⁵ digits", "refused: JSON has one reading"
    ),
    Case("FIL-7", "S3", "settings as YAML, JSON or INI", "refused by file: it is not TOML"),
    Case(
        "FIL-8",
        "S1",
        "settings with an unknown key, a value of another type, or a name misspelt (`noise_multiplyer`)",
        "refused by section and key, with the nearest name",
    ),
    Case(
        "FIL-9",
        "S2",
        "a setting that holds `${…}`, `$(…)`, `{{…}}`, a line end or control codes",
        "taken as it stands; messages show what a terminal would obey escaped, in one line",
    ),
    Case(
        "FIL-10",
        "S1",
        "forty names that lead elsewhere (`../../x`, absolute, `~`, links, NUL, 300 characters), from the server, in a "
        "manifest, or as the name of an app",
        "no path is made of a name that somebody else chose: runs are kept under a hash, files found by their numbers; links "
        "in a run's folder are not followed",
    ),
    Case(
        "FIL-11",
        "S2",
        "the folder of a run that others may enter, or that belongs to another user",
        "closed to all but its owner before anything is in it; a foreign one, and a key that others may read, are refused",
    ),
    Case(
        "FIL-12",
        "S3",
        "a ledger, checkpoint, strategy, key or agreement of a later form",
        "refused with the form that it has, or that is read",
    ),
    Case("FIL-13", "S3", "an empty file, a folder, a pipe or /dev/zero in place of a file", "refused by name, at once"),
    Case(
        "FIL-14",
        "S3",
        "a file that changes while it is read",
        "it is read once: what was hashed and checked is what is used, and the next reader learns of it",
    ),
]
