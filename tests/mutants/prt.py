"""Participation: mutants."""

from mutants.mutant import Mutant

LEDGER = "test_ledger.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a client may come again at once",
        "participation.py",
        "return len(rounds) < self.max_participations and (not rounds or round_index - rounds[-1] >= self.min_separation)",
        "return len(rounds) < self.max_participations",
        f"{LEDGER}::test_prt_1_a_breach_is_refused_by_name_and_nothing_is_charged",
    ),
    Mutant(
        "a client may come once more than promised",
        "participation.py",
        "return len(rounds) < self.max_participations and (not rounds",
        "return len(rounds) <= self.max_participations and (not rounds",
        "test_participation_kept.py::test_prt_2_a_client_that_took_part_as_often_as_promised_is_never_asked_again",
    ),
    Mutant(
        "each start knows clients by other names",
        "accounting/ledger.py",
        'self.digest("client", str(client).encode())[:32]',
        'self.digest("client", f"{client} {len(self._history.epochs)}".encode())[:32]',
        "test_participation_kept.py::test_prt_3_a_start_knows_the_clients_of_those_before",
    ),
    Mutant(
        "who was asked in a round that was burned did not take part",
        "accounting/history.py",
        'last.state = "burned"',
        'last.state = "burned"\n            for one in last.clients:\n                self.joined[one].remove(round_index)',
        f"{LEDGER}::test_prt_4_a_client_joins_as_the_promise_allows_and_burned_rounds_count",
    ),
    Mutant(
        "clients are known by the number of their node",
        "flower/nodes.py",
        'found["key " + hashlib.sha256(node.public_key).hexdigest()] = node.node_id',
        'found[f"key {node.node_id}"] = node.node_id',
        "test_flower_strategies.py::test_prt_5_a_client_that_comes_back_under_another_number_is_the_same_client",
    ),
    Mutant(
        "a run goes on past its last round",
        "accounting/ledger.py",
        "if round_index != self.next_round or round_index >= self.promise.rounds:",
        "if round_index != self.next_round:",
        f"{LEDGER}::test_prt_7_the_round_after_the_last_is_refused",
    ),
    Mutant(
        "what was promised is stated whatever happened",
        "accounting/spent.py",
        "return self.happened if self.worse else self.promised",
        "return self.promised",
        "test_spent.py::test_prt_8_a_broken_pattern_is_charged_as_it_happened[banded]",
    ),
    Mutant(
        "a client may be listed twice",
        "training/cohorts.py",
        "        if first != place:\n",
        "        if False:\n",
        "test_own_classes.py::test_prt_9_whoever_is_listed_twenty_times_among_a_hundred_is_refused",
    ),
    Mutant(
        "a list of clients may change in the run",
        "training/rounds.py",
        "if listed != clients and counts_on_list(plan.participation):",
        "if False:",
        "test_own_classes.py::test_prt_10_a_list_is_the_one_that_the_run_began_with_though_it_is_changed_in_place",
    ),
    Mutant(
        "whom a population strikes off its cohort did not take part",
        "training/rounds.py",
        "_collected(plan, population, list(cohort), model, clip_norm, round_index)",
        "_collected(plan, population, cohort, model, clip_norm, round_index)",
        "test_own_classes.py::test_prt_10_a_client_that_a_population_strikes_off_its_cohort_took_part_all_the_same",
    ),
]
