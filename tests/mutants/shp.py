"""Shapes and types of tensors: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
an array without axes is left as the client returned it @ Layout.of
- array.dtype in _FLOATS and name.rpartition('.')[2] not in BUFFERS
+ array.dtype in _FLOATS and array.shape and (name.rpartition('.')[2] not in BUFFERS)
? test_flower_mods.py::test_shp_1_an_array_without_axes_is_clipped_and_stays_an_array

buffers of a module pass unseen @ functional.require_trainable
- name in kept
+ name not in kept
? test_training.py::test_shp_2_shp_3_a_buffer_is_refused_and_a_constant_is_not

statistics of layers are trained like weights @ flower.arrays
- ('running_mean', 'running_var', 'num_batches_tracked')
+ ()
? test_flower_replies.py::test_shp_2_shp_3_buffers_are_refused_until_they_are_to_be_kept

what is released is rounded to 16 bits @ Lattice.release
- noise.add_(total.to(torch.float64)).mul_(self.step)
+ noise.add_(total.to(torch.float64)).mul_(self.step).to(torch.bfloat16).to(torch.float64)
? test_odd_tensors.py::test_shp_4_half_precision_is_summed_and_hidden_in_whole_steps[dtype1]

an array of as many numbers is taken, whatever its shape @ Layout._view
- array.shape != shape
+ array.size != math.prod(shape)
? test_flower_replies.py::test_num_7_num_8_shp_5_shp_6_shp_9_what_is_no_update_counts_as_no_reply[another shape-fixed]

arrays beyond the model's are overlooked @ Layout.views
- set(arrays) - set(self.order)
+ set()
? test_flower_replies.py::test_num_7_num_8_shp_5_shp_6_shp_9_what_is_no_update_counts_as_no_reply[a name too many-fixed]

a population may train the model itself @ RunState.require_same_model
- torch.equal(self.model.vector, vector) and written == self._written()
+ written == self._written()
? test_own_classes.py::test_shp_10_a_population_that_trains_the_model_itself_is_refused_and_the_model_is_put_back[trained]

a sum may be repeated over its noise @ lattice.require_one_shape
- total.shape != row.shape
+ False
? test_own_classes.py::test_shp_11_a_sum_that_torch_would_repeat_over_its_noise_is_refused[lattice]

a sum may be as long as it is @ ReleasePath._recorded
- _require_clipped(self.next_round, total, len(cohort), clip_norm)
+ pass
? test_release.py::test_shp_12_a_sum_longer_than_clipped_updates_can_make_is_refused_before_anything_is_recorded[lattice]
""")
