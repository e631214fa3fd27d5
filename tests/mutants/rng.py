"""Randomness: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
keys come from a generator that scripts seed @ prf.fresh_key
- os.urandom
+ np.random.bytes
? test_streaming.py::test_rng_1_a_global_seed_does_not_reach_the_noise

noise comes from torch's generator @ sources._box_muller
- torch.from_numpy(words(_WORDS_PER_PAIR * pairs).view(np.int64)).bitwise_right_shift_(11).bitwise_and_(2 ** 53 - 1)
+ torch.randint(2 ** 53, (_WORDS_PER_PAIR * pairs,))
? test_secure_noise.py::test_rng_1_noise_neither_reads_nor_moves_a_global_generator

a fork may draw rows @ SecureSource.segments
- require_own_process(self._process, f'row {index} of z', 'whose rows these are')
+ pass
? test_secure_noise.py::test_rng_2_a_fork_cannot_draw_the_rows_of_its_parent

a row is given out as often as it is asked for @ ReleasePath.row
- if (noise and noise.round_index != ticket.round_index) or ticket.clip_norm is None:
-     raise LedgerError(f'round {ticket.round_index}: its row of noise was given out already; abort the round')
+ noise._round = ticket.round_index
+ if ticket.clip_norm is None:
+     raise LedgerError(f'round {ticket.round_index}: its row of noise was given out already; abort the round')
? test_release.py::test_rng_4_a_row_of_noise_is_given_out_once_and_for_a_charged_round_only

two threads are given one row @ ReleasePath.row
- self._one_at_a_time
+ threading.Lock()
? test_release.py::test_rng_4_of_two_threads_that_ask_for_a_row_one_gets_it

a row opens any sum @ Row.meet
- begun.dtype != total.dtype or not torch.equal(begun, total.to(begun.device))
+ False
? test_release.py::test_rng_4_a_row_of_noise_opens_the_sum_that_its_round_began_with_and_no_other

a row opens a sum on another lattice @ Row.meet
- self._step not in (None, step)
+ False
? test_release.py::test_rng_4_a_row_of_noise_opens_the_sum_that_its_round_began_with_and_no_other

a row opens its sum as it was changed since @ ReleasePath.begin
- known.clone()
+ known
? test_release.py::test_rng_4_a_row_of_noise_opens_the_sum_that_its_round_began_with_and_no_other

a sum may be committed bare, once its row is taken @ ReleasePath._committed
- self._begun[2] if self._begun and self._moves else None
+ None
? test_release.py::test_rng_4_a_bare_sum_and_a_number_between_two_points_are_not_committed

a row opens a second sum @ Row.meet
- self._unmet.pop()
+ self._unmet[0]
? test_release.py::test_rng_4_a_row_of_noise_opens_the_sum_that_its_round_began_with_and_no_other

secret noise may be set back @ NoiseStream.load_state_dict
- self._process is not None and round_index < self.round_index
+ False
? test_release.py::test_rng_4_a_stream_of_secret_noise_is_not_set_back

a round that is under way is begun again with another sum @ Ledger._require_repeatable
- self.history.rounds[-1].total != total
+ not total
? test_ledger.py::test_rng_4_a_simulations_round_may_be_done_again_only_with_the_same_sum

every row is made from the key itself @ SecureSource.segments
- derive(self._key, index)
+ self._key
? test_secure_noise.py::test_rng_5_no_other_row_and_no_other_key_gives_a_number_of_this_row

each part of a row begins at the row's first words @ SecureSource.segments
- word_stream(derive(self._key, index), first * _WORDS)
+ word_stream(derive(self._key, index))
? test_keys_of_runs.py::test_rng_5_the_parts_of_a_vector_are_parts_of_one_row

keys of 64 bits @ prf.fresh_key
- os.urandom
+ os.urandom(8).ljust
? test_keys_of_runs.py::test_rng_6_every_key_is_256_bits_of_the_operating_system

the secret of a real run is made from its seed @ ReleasePath._open
- fresh_key() if self._secure else derive(seed_key(seed), 'run')
+ derive(seed_key(seed), 'run')
? test_keys_of_runs.py::test_rng_6_no_seed_of_the_user_reaches_a_key_or_the_noise_of_a_real_run

a simulation is not called one @ Promise.record
- _NOT_FOR_RELEASE if self.simulation else 'secure'
+ 'secure'
? test_keys_of_runs.py::test_rng_6_noise_from_a_known_seed_is_called_so_in_the_ledger_and_in_the_statement

without the system's randomness keys are made from the time @ prf.fresh_key
- return os.urandom(KEY_BYTES)
+ try:
+     return os.urandom(KEY_BYTES)
+ except (OSError, NotImplementedError):
+     return hashlib.sha256(str(__import__('time').time()).encode()).digest()
? test_secure_noise.py::test_rng_7_no_run_starts_without_the_operating_system_s_randomness

a start goes on with the cohort keys of the folder @ ReleasePath._incarnated
- self._cohort_keys = self.cohort_keys.renewed(mechanism.participation, key)
+ pass
? test_release_folder.py::test_cra_7_rng_8_two_copies_of_a_run_draw_cohorts_of_their_own

coins come from the Mersenne Twister @ cohorts._sampled
- bits(coins, clients) >> np.uint64(11)
+ np.random.randint(0, 2 ** 63, clients).astype(np.uint64) >> np.uint64(10)
? test_keys_of_runs.py::test_rng_9_cohorts_are_drawn_from_a_secret_key_and_by_no_generator_that_can_be_seeded[Poisson]

cohorts of a fixed size come from Python's generator @ prf.uniform_choice
- order = np.argsort(bits(key, population), kind='stable')
- return sorted((int(i) for i in order[:size]))
+ return sorted(__import__('random').sample(range(population), size))
? test_keys_of_runs.py::test_rng_9_cohorts_are_drawn_from_a_secret_key_and_by_no_generator_that_can_be_seeded[fixed size]

the ledger holds the key of an epoch @ Ledger.start_epoch
- self.digest('key', key)
+ key.hex()
? test_release_folder.py::test_rng_10_no_file_beside_the_keys_holds_a_key

an open run can be copied @ NoiseStream.__reduce_ex__
- self._process is not None
+ self._process == 0
? test_keys_of_runs.py::test_rng_10_neither_an_open_run_nor_its_noise_nor_a_secret_can_be_pickled_or_shown

core dumps hold keys @ app.main
- resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
+ resource.getrlimit(resource.RLIMIT_CORE)
? test_keys_of_runs.py::test_rng_10_the_command_line_leaves_no_core_dump

an experiment that goes on has the seed of the finished one @ warm_start.extending
- 'simulation'
+ 'none'
? test_extending.py::test_rng_5_an_experiment_that_goes_on_draws_other_noise_and_cohorts

a strategy of one's own may change in the run @ _Unchanged.require
- same = np.array_equal(row, self._rows[self._next])
? test_own_classes.py::test_rng_11_a_strategy_that_changes_in_the_run_is_refused_before_its_round_is_charged[3]
""")
