"""Accounting: mutants."""

from mutants.mutant import Mutant

MUTANTS: list[Mutant] = [
    Mutant(
        "noise counts upside down",
        "mechanism.py",
        "return min(self.sensitivity_after(rounds).value, self.l2_sensitivity) / self.stddev",
        "return self.stddev / min(self.sensitivity_after(rounds).value, self.l2_sensitivity)",
        "test_epsilon_laws.py::test_acc_1_epsilon_is_monotone_in_all_arguments_of_every_mechanism[few]",
    ),
    Mutant(
        "rounds of Gaussians add their noise in place of its square",
        "accounting/unamplified.py",
        "domination.unamplified_mu(event, neighboring_relation) ** 2 for",
        "domination.unamplified_mu(event, neighboring_relation) ** 3 for",
        "test_epsilon_laws.py::test_acc_2_no_epsilon_at_hundreds_of_points_is_below_what_is_exact[few]",
    ),
    Mutant(
        "one direction of a sampled round is forgotten",
        "accounting/composition.py",
        "    if back is not None:\n        answer = max(answer,",
        "    if back is not None:\n        answer = min(answer,",
        "test_epsilon_laws.py::test_acc_2_no_epsilon_at_hundreds_of_points_is_below_what_is_exact[few]",
    ),
    Mutant(
        "calibration stops one step too early",
        "accounting/calibrate.py",
        "    return math.exp(found * _WIDTH)",
        "    return math.exp((found - 1) * _WIDTH)",
        "test_epsilon_laws.py::test_acc_3_what_was_calibrated_costs_at_most_its_target[few]",
    ),
    Mutant(
        "of equal events the last alone counts",
        "accounting/events.py",
        "together[event] = together.get(event, 0) + integer(",
        "together[event] = integer(",
        "test_epsilon_laws.py::test_acc_4_halves_compose_to_the_whole_and_their_order_does_not_matter",
    ),
    Mutant(
        "noise is not scaled by the largest column",
        "mechanism.py",
        "return self.noise_multiplier * self.column_norm",
        "return self.noise_multiplier",
        "test_epsilon_laws.py::test_acc_5_one_participation_is_one_gaussian_of_the_largest_column[Dense]",
    ),
    Mutant(
        "what a foreign strategy states of its sensitivity is believed",
        "mechanism.py",
        "return strategy.sensitivity(participation) if type(strategy) in OWN else",
        "return strategy.sensitivity(participation) if strategy is not None else",
        "test_epsilon_laws.py::test_acc_6_no_sensitivity_is_below_brute_force_over_every_pattern",
    ),
    Mutant(
        "to ask for epsilon takes the last round away",
        "accounting/ledger.py",
        "return self.promise.after(len(self._history.rounds), delta)",
        "return self.promise.after(len([self._history.rounds.pop() for _ in self._history.rounds[-1:]]), delta)",
        "test_budget_ends.py::test_acc_7_a_ledger_answers_the_same_however_often_it_is_asked",
    ),
    Mutant(
        "correlated noise is amplified without a theorem",
        "accounting/charge.py",
        "    _require_theorem(mechanism.strategy, mechanism.participation)\n",
        "",
        "test_epsilon_laws.py::test_acc_8_no_pattern_is_amplified_and_no_amplification_is_stated_without_its_coins",
    ),
    Mutant(
        "a replacement moves the sum by one clip norm",
        "accounting/domination.py",
        "        case Gaussian(z) | PoissonSampled(z):\n            return factor / z",
        "        case Gaussian(z) | PoissonSampled(z):\n            return 1 / z",
        "test_accounting.py::test_acc_9_replace_one_doubles_the_sensitivity",
    ),
    Mutant(
        "the round after the budget is begun all the same",
        "flower/private.py",
        "if not self._rounds_left(1):",
        "if self._rounds_left(1) < 0:",
        "test_budget_ends.py::test_acc_10_the_round_that_would_exceed_a_federations_budget_is_not_begun",
    ),
    Mutant(
        "a cost that is no number passes",
        "accounting/composition.py",
        "    if not answer >= 0:",
        "    if answer < -1:",
        "test_budget_ends.py::test_acc_11_an_accountant_without_an_answer_has_no_epsilon[tight-nan]",
    ),
    Mutant(
        "one direction without an answer is covered by the other",
        "accounting/composition.py",
        '_require_bound("epsilon", pld.epsilon(back, delta, enough=answer))',
        "pld.epsilon(back, delta, enough=answer)",
        "test_budget_ends.py::test_acc_11_one_direction_without_an_answer_is_not_covered_by_the_other",
    ),
    Mutant(
        "earlier runs over the same people cost nothing",
        "accounting/guarantee.py",
        "(*before, *charges(mechanism, done))",
        "charges(mechanism, done)",
        "test_earlier_runs.py::test_acc_12_a_run_that_is_told_of_earlier_ones_starts_with_their_charge",
    ),
]
