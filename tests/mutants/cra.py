"""Crash, restart, disk: mutants.

What is not in the list, since no loss of power shows it: the fsync of ``files.truncate`` (the append that follows a repair
syncs the same file) and that of ``files.wipe`` (no run goes on after it).
"""

from mutants.mutant import Mutant

KILLED = "test_kill_points.py::test_cra_1_a_process_that_is_killed_before_any_call_breaks_no_promise"
BETWEEN = "test_kill_points.py::test_cra_2_a_kill_between_two_steps_of_a_round"
# A violation is found at any other moment as well, in half the time; the others need this one.
SOME = "test_power_loss.py::test_cra_3_power_loss_in_a_short_run_breaks_no_promise[every other moment]"
POWER = "test_power_loss.py::test_cra_3_power_loss_in_a_short_run_breaks_no_promise[each moment]"

BEGIN = "        ticket = path.begin(cohort, total, plan.clip_norms.bound(clip_norm))\n"
BEGUN = '        clock.end("promise")\n'
OPEN = "        try:\n            release = total.open(path.row(ticket))\n"
OPEN_FIRST = "        release = total.open(path.noise.next_row() * plan.clip_norm)\n"
COMMIT = "            path.commit(ticket, release)\n"
APPEND = "            self._chain.append(body)\n        except"
SAVE = (
    "        content = self._store.save_release(ticket.round_index, release) if self._store else "
    "release.cpu().numpy().tobytes()\n        self.ledger.commit(ticket, content)\n"
)
KEY = "                self._store.add_noise_key(len(self.ledger.epochs), key)\n"
EPOCH = "        self.ledger.start_epoch(drawn, key, sampler())\n"

EXCEPT = "        except"
LEDGER_SYNC = "            os.fsync(descriptor)\n        except"
SYNC_BUT = "            if b'{1}' not in {0}:\n                os.fsync(descriptor)\n"
RENAMED = "        raise\n    sync(path.parent)\n"
CHECKPOINT = (
    "        for name, part in parts.items():\n"
    "            content = save_tensors({key: tensor.cpu().contiguous() for key, tensor in part.items()})\n"
    "            files.write_atomic(self._state / name, content)\n"
    '            manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}\n'
    '        files.write_atomic(self._state / "checkpoint.json", strict_json.canonical(manifest))\n'
)
TWICE = ("Violation: I3: round 0 met noise twice, and is charged once",)
STOPS = ("Violation: the run cannot go on: ",)
NOT_COMMITTED = ("Violation: I2: round 0 was seen by the world, and is not committed",)
TOO_LATE = ("Violation: I3: round 0 was charged too late",)
TOO_EARLY = ("Violation: I2: round 0 left before it was committed",)
ONE_KEY = ("Violation: I4: ",)

KILLS = [
    Mutant(
        "an interrupted round is not burned",
        "training/release.py",
        "            self.burn(pending)\n",
        "            return\n",
        KILLED,
    ),
    Mutant(
        "a round is charged when it ends",
        "accounting/ledger.py",
        APPEND,
        '            if body["kind"] in ("commit", "burn"):\n'
        "                self._chain.append(self._held)\n"
        '            if body["kind"] != "begin":\n'
        "                self._chain.append(body)\n"
        "            self._held = body\n"
        "        except",
        KILLED,
    ),
    Mutant(
        "each start draws from the first key",
        "training/release.py",
        "            key = fresh_key()\n",
        "            key = fresh_key() if not self.ledger.epochs else self._store.noise_key(0)\n",
        KILLED,
        ("noise of a start is not from a key of its own",),
    ),
    Mutant(
        "what a crash left whole is burned as well",
        "training/release.py",
        "if self._store and pending.round_index in self._store.released():",
        "if False:",
        f"{BETWEEN}[the file and its record]",
    ),
    Mutant(
        "a round that was interrupted is begun again",
        "training/release.py",
        "        elif self._secure or self._in_sums or self.ledger.promise.setting:\n",
        "        elif self._in_sums or self.ledger.promise.setting:\n",
        f"{BETWEEN}[the noise and its file]",
    ),
    Mutant(
        "the digest of a release before its file",
        "training/release.py",
        SAVE,
        "        from safetensors.torch import save\n\n"
        '        self.ledger.commit(ticket, save({"release": release}))\n'
        "        self._store.save_release(ticket.round_index, release)\n",
        f"{BETWEEN}[the noise and its file]",
    ),
]

POWER_LOST = [
    Mutant("no fsync of the ledger", "files.py", LEDGER_SYNC, EXCEPT, SOME, TWICE),
    Mutant("no fsync of the folder after a rename", "files.py", RENAMED, "        raise\n", SOME, TWICE),
    Mutant(
        "noise meets the sum before BEGIN",
        "training/rounds.py",
        BEGIN + BEGUN + OPEN,
        OPEN_FIRST + BEGIN + BEGUN + "        try:\n            pass\n",
        POWER,
        STOPS,
    ),
    Mutant(
        "no fsync of BEGIN", "files.py", LEDGER_SYNC, SYNC_BUT.format("content", '"begin"') + EXCEPT, POWER, TWICE, slow=True
    ),
    Mutant(
        "no fsync of COMMIT",
        "files.py",
        LEDGER_SYNC,
        SYNC_BUT.format("content", '"commit"') + EXCEPT,
        POWER,
        NOT_COMMITTED,
        slow=True,
    ),
    Mutant(
        "no fsync of the folder of releases",
        "files.py",
        RENAMED,
        '        raise\n    if path.parent.name != "releases":\n        sync(path.parent)\n',
        POWER,
        (*STOPS, "Violation: I2: the release of round 0 was seen by the world, and is not on disk"),
        slow=True,
    ),
    Mutant(
        "no fsync of the folder of keys",
        "files.py",
        RENAMED,
        '        raise\n    if path.parent.name != "keys":\n        sync(path.parent)\n',
        POWER,
        STOPS,
        slow=True,
    ),
    Mutant(
        "no fsync of a file before its rename",
        "files.py",
        "            _write(descriptor, content, temporary)\n            os.fsync(descriptor)\n",
        "            _write(descriptor, content, temporary)\n",
        POWER,
        STOPS,
        slow=True,
    ),
    Mutant(
        "no fsync of the folder after mkdir",
        "files.py",
        "    os.mkdir(path, 0o700)\n    sync(path.parent)\n",
        "    os.mkdir(path, 0o700)\n",
        POWER,
        TWICE,
        slow=True,
    ),
    Mutant(
        "no rename: the file is written in its place",
        "files.py",
        "    temporary = _temporary(path)\n",
        "    temporary = path\n",
        POWER,
        TWICE,
    ),
    Mutant(
        "COMMIT before the release is on the disk",
        "training/release.py",
        SAVE,
        "        from safetensors.torch import save\n\n"
        '        self.ledger.commit(ticket, save({"release": release}))\n'
        "        self._store.save_release(ticket.round_index, release)\n",
        POWER,
        STOPS,
    ),
    Mutant(
        "COMMIT and BEGIN in each other's place",
        "accounting/ledger.py",
        APPEND,
        '            if body["kind"] != "begin":\n'
        "                self._chain.append(body)\n"
        '            if body["kind"] in ("commit", "burn"):\n'
        "                self._chain.append(self._held)\n"
        "            self._held = body\n"
        "        except",
        POWER,
        STOPS,
    ),
    Mutant(
        "BEGIN together with COMMIT",
        "accounting/ledger.py",
        APPEND,
        '            if body["kind"] in ("commit", "burn"):\n'
        "                self._chain.append(self._held)\n"
        '            if body["kind"] != "begin":\n'
        "                self._chain.append(body)\n"
        "            self._held = body\n"
        "        except",
        POWER,
        TOO_LATE,
    ),
    Mutant(
        "the world sees the release before COMMIT",
        "training/rounds.py",
        COMMIT,
        '            yield RoundResult(round_index, 0, 1e9, "", 0.0, {})\n' + COMMIT,
        POWER,
        TOO_EARLY,
    ),
    Mutant("an epoch without its key", "training/release.py", KEY, "                pass\n", POWER, STOPS),
    Mutant(
        "the key of an epoch after its record",
        "training/release.py",
        KEY.join(("            if self._store:\n", EPOCH)),
        EPOCH + "        if key and self._store:\n            self._store.add_noise_key(len(self.ledger.epochs) - 1, key)\n",
        POWER,
        STOPS,
        slow=True,
    ),
    Mutant(
        "one key for all epochs",
        "training/release.py",
        "            key = fresh_key()\n",
        "            key = bytes(32)\n",
        POWER,
        ONE_KEY,
    ),
    Mutant(
        "the key of the epoch before",
        "training/release.py",
        "            key = fresh_key()\n",
        "            key = fresh_key() if not self.ledger.epochs else self._store.noise_key(0)\n",
        POWER,
        ONE_KEY,
        slow=True,
    ),
    Mutant(
        "an interrupted round stays open",
        "training/release.py",
        "            self.burn(pending)\n",
        "            return\n",
        POWER,
        STOPS,
    ),
    Mutant(
        "a run goes on without the noise that was drawn before",
        "training/release.py",
        "            self.noise.skip_to(self.ledger.next_round)\n",
        "            self.noise.round_index = self.noise._drawn_before = self.ledger.next_round\n",
        POWER,
        STOPS,
    ),
    Mutant(
        "a checkpoint is named before it is written",
        "training/store.py",
        CHECKPOINT,
        "        contents = {}\n"
        + CHECKPOINT.replace("files.write_atomic(self._state / name, content)", "contents[name] = content")
        + "        for name, content in contents.items():\n            files.write_atomic(self._state / name, content)\n",
        POWER,
        STOPS,
        slow=True,
    ),
    Mutant(
        "releases are forgotten before the checkpoint",
        "training/store.py",
        '        parts = {f"checkpoint-{rounds}.safetensors": tensors}\n',
        '        parts = {f"checkpoint-{rounds}.safetensors": tensors}\n        self._forget_before(rounds)\n',
        POWER,
        STOPS,
        slow=True,
    ),
]

FOLDER = [
    Mutant(
        "a last line that does not hold is dropped, whole or not",
        "accounting/chain.py",
        "if chain.hashes and last and (not whole or _UNWRITTEN in line) and not",
        "if chain.hashes and last and not",
        "test_ledger.py::test_cra_4_a_last_record_that_was_changed_is_not_taken_for_a_torn_one",
    ),
    Mutant(
        "a last record whose end of line was changed is taken for a torn one",
        "accounting/chain.py",
        " and not _ended_by_another(chain, line):",
        ":",
        "test_ledger.py::test_cra_4_a_last_record_that_was_changed_is_not_taken_for_a_torn_one",
    ),
    Mutant(
        "a model that the ledger does not bind is written anew and bound",
        "engine/folder.py",
        "            if bound is not None and bound.get(name) != digest:\n",
        "            if bound is None and name == digest:\n",
        "test_verification.py::test_cra_18_a_run_that_was_changed_after_its_end_is_not_made_whole_by_resuming_it[model.safetensors]",
    ),
    Mutant(
        "a model without a record passes",
        "verification.py",
        "    if unbound:\n",
        "    if not made and unbound:\n",
        "test_power_loss.py::test_cra_3_a_loss_of_power_while_a_model_is_written_leaves_none_that_passes_unbound",
    ),
    Mutant(
        "a last record that lost its end of line is dropped",
        "accounting/chain.py",
        '            _believe(chain, line.removesuffix(b"\\n"), forms)\n',
        '            if not whole:\n                raise ValueError("it has no end")\n'
        '            _believe(chain, line.removesuffix(b"\\n"), forms)\n',
        "test_ledger.py::test_cra_4_cutting_the_last_line_anywhere_leaves_a_ledger_that_is_at_most_one_record_shorter",
    ),
    Mutant(
        "a round whose record was torn is begun again beside its release",
        "training/release.py",
        "        if what := (\n",
        "        if what := False and (\n",
        "test_kill_points.py::test_cra_4_a_charge_that_was_cut_off_beside_its_release_is_a_rollback",
    ),
    Mutant(
        "a run goes on under any promise",
        "accounting/ledger.py",
        "        if changed:\n            # What was given",
        "        if not found:\n            # What was given",
        "test_interruptions.py::test_cra_6_a_run_goes_on_with_each_of_its_settings_or_not_at_all[noise]",
    ),
    Mutant(
        "settings beside the mechanism are not compared",
        "accounting/ledger.py",
        "if expected.get(key) != found.get(key))",
        'if expected.get(key) != found.get(key) and not key.startswith("settings."))',
        "test_interruptions.py::test_cra_6_a_run_goes_on_with_each_of_its_settings_or_not_at_all[clip norm]",
    ),
    Mutant(
        "a matrix is known by its sensitivity",
        "accounting/ledger.py",
        "if expected.get(key) != found.get(key))",
        'if expected.get(key) != found.get(key) and "sha256" not in key)',
        "test_resuming.py::test_cra_6_a_run_resumes_under_its_own_matrix_only",
    ),
    Mutant(
        "the key of a start follows from the folder",
        "training/release.py",
        "            key = fresh_key()\n",
        '            key = derive(self._store.secret() if self._store else b"", "epoch", len(self.ledger.epochs))\n',
        "test_release.py::test_cra_7_rng_8_every_start_has_a_key_of_its_own_and_two_copies_of_a_folder_share_no_row",
    ),
    Mutant(
        "a kept head is not asked for",
        "accounting/chain.py",
        "        if head.lower() not in self.hashes:\n",
        "        if not self.hashes:\n",
        "test_release_folder.py::test_cra_7_cra_9_a_kept_head_tells_a_rolled_back_ledger",
    ),
    Mutant(
        "the lock is shared",
        "training/store.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "test_resuming.py::test_cra_8_two_processes_do_not_work_on_one_run",
    ),
    Mutant(
        "a folder that is newer than its ledger is taken",
        "training/release.py",
        "        self._require_folder_not_newer()\n",
        "",
        "test_release_folder.py::test_cra_9_a_ledger_that_was_rolled_back_by_any_number_of_records_does_not_come_back_to_life"
        "[all releases-5]",
    ),
    Mutant(
        "hashes are read and not compared",
        "accounting/chain.py",
        "    if head.encode() != stated:\n",
        "    if len(stated) != 64:\n",
        "test_ledger.py::test_cra_10_a_record_from_another_ledger_of_the_same_run_is_refused",
    ),
    Mutant(
        "a hash binds its own record alone",
        "accounting/chain.py",
        "hashlib.sha256(head.encode() + content)",
        "hashlib.sha256(content)",
        "test_ledger.py::test_cra_10_a_record_from_another_ledger_of_the_same_run_is_refused",
    ),
    Mutant(
        "a key that others may read is used",
        "training/store.py",
        "    if path.stat().st_mode & 0o077:\n",
        "    if not path.stat().st_mode:\n",
        "test_interruptions.py::test_cra_14_a_key_that_is_lost_or_damaged_ends_the_run_and_draws_no_noise"
        "[epoch-0-others may read it]",
    ),
    Mutant(
        "another key in the place of an epoch's is used",
        "training/release.py",
        '                if self.ledger.digest("key", key) != epoch.key:\n',
        "                if not key:\n",
        "test_interruptions.py::test_cra_14_a_key_that_is_lost_or_damaged_ends_the_run_and_draws_no_noise[epoch-0-another key]",
    ),
]

MUTANTS: list[Mutant] = [*KILLS, *FOLDER, *POWER_LOST]
