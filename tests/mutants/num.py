"""Bad numbers: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
a mechanism takes any noise multiplier @ Mechanism.__post_init__
- scale('noise_multiplier', self.noise_multiplier)
+ float(self.noise_multiplier)
? test_bad_numbers.py::test_num_1_num_3_num_4_num_6_num_13_no_door_takes_a_number_that_is_none[noise-mechanism-nan]

a ledger may state any noise multiplier @ promise._mechanism
- stated['noise_multiplier']
+ abs(float(stated['noise_multiplier'] or 1))
? test_bad_numbers.py::test_num_1_num_3_num_4_no_ledger_states_a_number_that_is_none[noise--1]

a run without a mechanism costs nothing @ guarantee.unprotected
- math.inf
+ 0.0
? test_bad_numbers.py::test_num_2_without_a_mechanism_epsilon_is_infinite_from_python_too

a lattice takes any clip norm @ Lattice.__post_init__
- scale('clip_norm', self.clip_norm)
+ float(self.clip_norm)
? test_bad_numbers.py::test_num_1_num_3_num_4_num_6_num_13_no_door_takes_a_number_that_is_none[clip norm-lattice-nan]

a delta of 0 or 1 is one @ checks.open_unit
- 0 < x < 1
+ 0 <= x <= 1
? test_bad_numbers.py::test_num_1_num_3_num_4_num_6_num_13_no_door_takes_a_number_that_is_none[delta-of nothing-1]

a budget takes any epsilon @ _Budget.__init__
- scale('epsilon', epsilon)
+ float(epsilon)
? test_bad_numbers.py::test_num_1_num_3_num_4_num_6_num_13_no_door_takes_a_number_that_is_none[epsilon-noise--1]

of an update with a number that is none the other numbers count @ _Blocks._read
- block.copy_(self._update[start:start + len(block)])
+ block.copy_(self._update[start:start + len(block)]).nan_to_num_(0.0, 0.0, 0.0)
? test_floating_point.py::test_num_7_num_8_an_update_that_is_not_finite_counts_as_zero[dtype0-nan]

norms are computed in the update's own precision @ _Blocks._square
- float(torch.dot(block, block))
+ float(torch.dot(block.to(torch.float32), block.to(torch.float32)))
? test_odd_tensors.py::test_num_10_norms_of_every_scale_are_clipped_exactly_and_none_vanishes_or_overflows

a round that nobody joined is skipped @ rounds._rounds
- clock.end('sample')
+ clock.end('sample')
+ if not cohort:
+     continue
? test_release.py::test_num_11_an_empty_cohort_releases_noise_and_is_charged

noise may be larger than whole numbers are exact @ steps.require_room
- positive('stddev', stddev) * most * DEVIATIONS > LARGEST
+ positive('stddev', stddev) > 1e+30
? test_bad_numbers.py::test_num_12_sums_are_refused_where_they_would_not_be_exact_and_no_sooner
""")
