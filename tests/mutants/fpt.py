"""Floating point: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
noise is added to the sum without rounding it to the lattice @ Lattice.release
- whole_steps(row.to(total.device), self.step)
+ row.to(total.device) / self.step
? test_floating_point.py::test_fpt_1_no_bit_of_a_release_on_the_lattice_says_who_took_part[Identity]

noise lies on a coarser lattice than the sum @ Lattice.release
- whole_steps(row.to(total.device), self.step)
+ whole_steps(row.to(total.device), 2 * self.step).mul_(2)
? test_floating_point.py::test_fpt_2_all_whole_numbers_within_8_deviations_can_be_released[3.0]

noise of few digits after the point is rounded to even steps @ lattice.whole_steps
- (row / step).add_(0.5).floor_()
+ (row / step).round_()
? test_floating_point.py::test_fpt_1_the_last_bits_of_a_release_are_even_whatever_the_sum_and_not_with_noise_of_fewer_bits

half of the noise is added @ Lattice.release
- row.to(total.device)
+ row.to(total.device) / 2
? test_floating_point.py::test_fpt_1_the_likeliest_guess_on_the_lattice_is_right_as_often_as_the_noise_allows[1.0-200]

an update is encoded as numbers in floating point @ Lattice.encode
- whole.to(torch.int64)
+ whole * self.step
? test_floating_point.py::test_fpt_3_a_thousand_orders_of_the_clients_give_the_same_bits

a clipped update is rounded without room for it, and its norm is not looked at again @ Lattice.add
- room = self.radius - math.sqrt(len(total)) / 2
- clipped = norm * (scale / self.step) > room
- factor = room / norm if clipped else scale / self.step
- while blocks.add(factor, scale) > self.radius**2:
-     blocks.add(factor, scale, sign=-1)
-     clipped, factor = (True, factor * _SHRINK)
+ room = self.radius
+ clipped = norm * (scale / self.step) > room
+ factor = room / norm if clipped else scale / self.step
+ blocks.add(factor, scale)
? test_floating_point.py::test_fpt_4_the_worst_updates_are_no_longer_than_the_clip_norm_in_exact_integers[1.0]

the model learns from the sum before its noise @ rounds._rounds
- run.update(release, round_index)
+ run.update(total.open(None), round_index)
? test_floating_point.py::test_fpt_5_a_model_is_made_of_the_one_before_and_of_the_release_alone[fedadam]

the radius of noise has 53 bits @ sources._box_muller
- fine.add_(0.5).mul_(2.0 ** (-106)).add_(coarse.mul_(2.0 ** (-53)))
+ coarse.add_(0.5).mul_(2.0 ** (-53))
? test_streaming.py::test_fpt_6_the_secure_radius_reaches_beyond_what_53_bits_can

noise beyond four deviations is drawn again @ sources._box_muller
- angle = turn.mul_(2 * math.pi * 2.0 ** (-53))
+ angle = turn.mul_(2 * math.pi * 2.0 ** (-53))
+ while bool((radius > 4).any()):
+     radius[radius > 4] /= 2
? test_secure_noise.py::test_fpt_7_the_work_of_a_release_hangs_neither_on_its_noise_nor_on_its_sum[7]
""")
