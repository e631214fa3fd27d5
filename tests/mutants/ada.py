"""Adaptive clipping: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
what a client says of its norm is counted as it is @ clipping.with_indicator
- min(max(stated, 0), 1)
+ stated
? test_bad_clients.py::test_cli_6_ada_4_so_they_are_with_adaptive_clipping_and_lies_about_the_norm[25]

the noise is scaled to the update alone, without its indicator @ CountSplit.joint_norm
- math.hypot(clip_norm, self.count_scale(clip_norm) / 2)
+ clip_norm
? test_clipping.py::test_ada_5_one_noise_hides_updates_and_count_as_stated

a count may cost all that is to be spent @ AdaptiveClipping.split
- room < _LARGEST_SHARE ** (-2)
+ room <= 0
? test_clipping.py::test_ada_5_a_count_that_would_cost_everything_is_refused[0.50001]

the clip norm moves under correlated noise @ plan._require_terms
- type(mechanism.strategy) is not Identity
+ mechanism.rounds < 1
? test_adaptive_clipping.py::test_ada_6_correlated_noise_is_refused_with_the_way_round_it
""")
