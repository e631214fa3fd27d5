"""Shapes and types of tensors: mutants."""

from mutants.mutant import Mutant

MUTANTS: list[Mutant] = [
    Mutant(
        "an array without axes is left as the client returned it",
        "flower/arrays.py",
        "            if array.dtype in _FLOATS and name",
        "            if array.dtype in _FLOATS and array.shape and name",
        "test_flower_mods.py::test_shp_1_an_array_without_axes_is_clipped_and_stays_an_array",
    ),
    Mutant(
        "buffers of a module pass unseen",
        "training/flat.py",
        "        if name in kept:",
        "        if name not in kept:",
        "test_populations.py::test_shp_2_shp_3_a_buffer_is_refused_and_a_constant_is_not",
    ),
    Mutant(
        "statistics of layers are trained like weights",
        "flower/arrays.py",
        'BUFFERS = ("running_mean", "running_var", "num_batches_tracked")',
        "BUFFERS = ()",
        "test_flower_replies.py::test_shp_2_shp_3_buffers_are_refused_until_they_are_to_be_kept",
    ),
    Mutant(
        "what is released is rounded to 16 bits",
        "lattice.py",
        "return noise.add_(total.to(torch.float64)).mul_(self.step)",
        "return noise.add_(total.to(torch.float64)).mul_(self.step).to(torch.bfloat16).to(torch.float64)",
        "test_odd_tensors.py::test_shp_4_half_precision_is_summed_and_hidden_in_whole_steps[dtype1]",
    ),
    Mutant(
        "an array of as many numbers is taken, whatever its shape",
        "flower/arrays.py",
        "if array.shape != shape or",
        "if array.size != math.prod(shape) or",
        "test_odd_tensors.py::test_shp_5_shapes_of_another_model_count_as_no_reply_and_the_round_goes_on",
    ),
    Mutant(
        "arrays beyond the model's are overlooked",
        "flower/arrays.py",
        "if unknown := set(arrays) - set(self.order):",
        "if unknown := set():",
        "test_odd_tensors.py::test_shp_6_every_order_of_names_is_one_and_every_other_set_of_names_is_no_reply",
    ),
    Mutant(
        "a population may train the model itself",
        "training/state.py",
        "if torch.equal(self.model.vector, vector) and written == self._written():",
        "if written == self._written():",
        "test_own_classes.py::test_shp_10_a_population_that_trains_the_model_itself_is_refused_and_the_model_is_put_back[trained]",
    ),
    Mutant(
        "a sum may be repeated over its noise",
        "lattice.py",
        "    if total.shape != row.shape:\n",
        "    if False:\n",
        "test_own_classes.py::test_shp_11_a_sum_that_torch_would_repeat_over_its_noise_is_refused[lattice]",
    ),
]
