"""Accounting: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
noise counts upside down @ Mechanism.mu_squared
- moved.value * factor / self.stddev
+ self.stddev / (moved.value * factor)
? test_epsilon_laws.py::test_acc_1_epsilon_is_monotone_in_all_arguments_of_every_mechanism[few]

rounds of Gaussians add their noise in place of its square @ dominating_pairs.mu_squared
- Fraction(event.noise_multiplier) ** 2
+ Fraction(event.noise_multiplier) ** 3
? test_epsilon_laws.py::test_acc_2_no_epsilon_at_hundreds_of_points_is_below_what_is_exact[few]

one direction of a sampled round is forgotten @ composition._epsilon
- _directions(events, relation)
+ _directions(events, relation)[-1:]

a sampled group is charged for k times the sensitivity @ groups._of_group
- q < 1
+ q < 0
? test_mixtures.py::test_acc_8_two_clients_that_act_as_one_cost_more_than_twice_the_sensitivity_where_cohorts_are_random

a release of a mixture is not rounded outwards @ accounting.dominating_pairs
- 2.0 ** (-50)
+ 0.0
? test_mixtures.py::test_acc_11_one_release_of_a_mixture_is_never_stated_below_60_digits_and_hardly_above[few]

calibration stops one step too early @ calibrate.calibrate_noise_multiplier
- found * _WIDTH
+ (found - 1) * _WIDTH
? test_epsilon_laws.py::test_acc_3_what_was_calibrated_costs_at_most_its_target[few]

of equal events the last alone counts @ events.counted
- together.get(event, 0) + integer('rounds', pair[1], at_least=0, at_most=MOST_ROUNDS)
+ integer('rounds', pair[1], at_least=0, at_most=MOST_ROUNDS)
? test_epsilon_laws.py::test_acc_4_halves_compose_to_the_whole_and_their_order_does_not_matter

noise is not scaled by the largest column @ Mechanism.stddev
- self.noise_multiplier * self.column_norm
+ self.noise_multiplier
? test_epsilon_laws.py::test_acc_5_one_participation_is_one_gaussian_of_the_largest_column[Dense]

what a foreign strategy states of its sensitivity is believed @ mechanism._sensitivity
- type(strategy) in OWN
+ strategy is not None
? test_epsilon_laws.py::test_acc_6_no_sensitivity_is_below_brute_force_over_every_pattern[few]

to ask for epsilon takes the last round away @ Ledger.spent
- self.history.rounds
+ [self.history.rounds.pop() for _ in self.history.rounds[-1:]]
? test_budget_ends.py::test_acc_7_a_ledger_answers_the_same_however_often_it_is_asked

correlated noise is amplified without a theorem @ events_of_mechanism.mechanism_events
- _require_theorem(mechanism.strategy, mechanism.participation)
? test_epsilon_laws.py::test_acc_8_no_pattern_is_amplified_and_no_amplification_is_stated_without_its_coins

a replacement moves the sum by one clip norm @ dominating_pairs.mu_squared
- 2.0 if relation == 'replace-one' else 1.0
+ 1.0
? test_accounting.py::test_acc_9_replace_one_doubles_the_sensitivity

the round after the budget is begun all the same @ PrivateStrategy.configure_train
- not self._rounds_left(1)
+ self._rounds_left(1) < 0
? test_budget_ends.py::test_acc_10_the_round_that_would_exceed_a_federations_budget_is_not_begun

a cost that is no number passes @ composition._require_bound
- not answer >= 0
+ answer < -1
? test_budget_ends.py::test_acc_11_an_accountant_without_answer_has_no_epsilon[tight-nan]

one direction without an answer is covered by the other @ composition._epsilon
- _require_bound('epsilon', pld.epsilon(direction, delta, enough=answer))
+ pld.epsilon(direction, delta, enough=answer)
? test_budget_ends.py::test_acc_11_one_direction_without_an_answer_is_not_covered_by_the_other

earlier runs over the same people cost nothing @ guarantee.together
- (*before, *own)
+ own
? test_earlier_runs.py::test_acc_12_a_run_that_is_told_of_earlier_ones_starts_with_their_charge

what went on before from the same run is not charged @ warm_start.related
- waiting.append(other)
? test_extending.py::test_acc_12_what_went_on_before_is_charged_to_what_goes_on_now

a run may go on without the charge of the one it goes on from @ warm_start.extending
- any((run.first == extends.ledger and run.head == extends.head for run in following.earlier))
+ extends.ledger
? test_extending.py::test_acc_12_a_plan_that_goes_on_without_the_charge_is_no_plan

any model passes for that of the finished run @ state.begins_with
- model_digest(start.model) != extends.model
+ not model_digest(start.model)
? test_extending.py::test_acc_12_what_a_run_goes_on_with_cannot_be_exchanged[model]

a run that was laid out to go on may begin by itself @ state.begins_with
- extends is None and start.finished
+ extends is None and start.finished and (not start.finished)
? test_extending.py::test_acc_12_what_was_laid_out_to_go_on_does_not_begin_by_itself

a branch that was deleted is forgotten @ warm_start.require_new
- str(into.resolve()) in known and (not os.path.lexists(into / START))
+ str(into.resolve()) not in known and os.path.lexists(into / START)
? test_extending.py::test_acc_12_a_branch_that_was_deleted_is_not_begun_again_as_if_it_had_never_been

a finished run may be charged less than its ledger says @ warm_start._origin
- cost_of_run(then, own, History.of_chain(then)).record() != charge.record()
+ cost_of_run(then, own, History.of_chain(then)).first != charge.first
? test_extending.py::test_acc_12_a_charge_that_is_smaller_than_the_ledger_says_is_seen_by_verify

a model file is gone on from that the releases do not make @ extending._require_model
- if wrong:
-     raise RunFolderError(
-         f"{path}: its {wrong[0]!r} is not what the releases in the ledger make, so that nothing says what it was made of; make it anew (hubbub resume {folder}), on the machine that trained it"
-     )
+ if wrong and (not made):
+     raise RunFolderError(
+         f"{path}: its {wrong[0]!r} is not what the releases in the ledger make, so that nothing says what it was made of; make it anew (hubbub resume {folder}), on the machine that trained it"
+     )
? test_extend_command.py::test_acc_12_a_model_that_the_releases_do_not_make_is_refused

the rounding of the inverse of a banded matrix is not counted @ BandedInverse.sensitivity
- found.value / (1 - rounding)
+ found.value
? test_banded_inverse.py::test_acc_2_no_sensitivity_is_lost_to_rounding_where_roots_cluster[on the circle-2]

evaluations after rounds beyond the promise cost nothing @ actual_cost.spent
- promise.evaluations(begun)
+ promise.evaluations(min(begun, promise.rounds))
? test_spent.py::test_prt_8_independent_rounds_beyond_the_promise_are_charged_like_the_others
""")  # noqa: E501 # code as it stands
