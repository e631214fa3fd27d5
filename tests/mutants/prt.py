"""Participation: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
a client may come again at once @ _Participation.may_follow
- ((counts == 0) | apart_enough) & (counts < most) & (round_index < end)
+ (counts < most) & (round_index < end)
? test_ledger.py::test_prt_1_a_breach_is_refused_by_name_and_nothing_is_charged

a cohort may be larger than its epsilon counts on @ Ledger._require_count
- count > most
+ False
? test_ledger.py::test_prt_12_cohorts_that_the_promise_cannot_give_are_refused_where_they_cost_more[fixed size]

of random cohorts nobody is followed @ Ledger.begin
- tags is not None and listed is None
+ False
? test_ledger.py::test_prt_12_cohorts_that_the_promise_cannot_give_are_refused_where_they_cost_more[two bins]

a client may come once more than promised @ _Participation.may_follow
- counts < most
+ counts <= most
? test_participation_kept.py::test_prt_1_prt_2_prt_3_prt_4_gaps_and_counts_hold_whoever_comes_and_however_often_it_starts[1500]

each start knows clients by other names @ Ledger._tags
- str(client)
+ f'{client} {len(self.history.epochs)}'
? test_participation_kept.py::test_prt_1_prt_2_prt_3_prt_4_gaps_and_counts_hold_whoever_comes_and_however_often_it_starts[1500]

who was asked in a round that was aborted did not take part @ History._end
- last.state = 'aborted'
+ last.state = 'aborted'
+ self.participations._counts[self.participations.cohort(round_index)] -= 1
+ self.participations._cohorts.pop(round_index, None)
? test_ledger.py::test_prt_4_a_client_joins_as_the_promise_allows_and_aborted_rounds_count

clients are known by the number of their node @ messages.clients_of
- 'key ' + hashlib.sha256(key).hexdigest()
+ f'key {node}'
? test_federations_go_wrong.py::test_flw_6_prt_5_nodes_that_come_back_under_new_numbers_are_the_clients_whose_keys_they_have

Poisson cohorts may all be of one size @ Ledger._require_drawn
- seen * log_chance + choices + math.log(self.promise.rounds) < _UNLIKELY
+ False
? test_ledger.py::test_prt_12_poisson_cohorts_of_one_size_are_refused_when_it_cannot_be_chance[0.5-1-0]

a run goes on past its last round @ Ledger.begin
- self.next_round >= self.promise.rounds
+ False
? test_ledger.py::test_prt_7_the_round_after_the_last_is_refused

what was promised is stated whatever happened @ Spent.guarantee
- self.happened if self.worse else self.promised
+ self.promised
? test_spent.py::test_prt_8_a_broken_pattern_is_charged_as_it_happened[banded]

a client may be listed twice @ cohorts.require_distinct
- first != place
+ False
? test_own_classes.py::test_prt_9_prt_10_a_round_is_of_one_list_that_has_each_name_once[60]

a list of clients may change in the run @ rounds._rounds
- listed != clients and counts_on_list(plan.participation)
+ False
? test_own_classes.py::test_prt_10_a_list_is_the_one_that_the_run_began_with_though_it_is_changed_in_place

whom a population strikes off its cohort did not take part @ rounds._rounds
- list(cohort)
+ cohort
? test_own_classes.py::test_prt_10_a_client_that_a_population_strikes_off_its_cohort_took_part_all_the_same

a device without a record knows its past @ _Record.read
- new if round_index else replace(new, known_from=0)
+ replace(new, known_from=0)
? test_flower_separation.py::test_prt_11_a_device_that_does_not_know_its_past_waits_as_if_it_had_taken_part

a device with a damaged record is as new as one without @ _Record.read
- _LOG.warning('separation_mod: %s is damaged (%s); the device waits as if it were new', path, error)
- return new
+ return new if round_index else replace(new, known_from=0)
? test_flower_separation.py::test_prt_11_a_damaged_record_is_none[{}]

a device forgets that it did not know @ _Record.with_round
- len(self.rounds) + unknown
+ len(self.rounds)
? test_flower_separation.py::test_prt_11_a_device_that_does_not_know_its_past_waits_as_if_it_had_taken_part

a reply that no device vouches for counts @ Summing.of
- if self.separation:
-     require_kept(content, self.separation)
+ pass
? test_flower_separation.py::test_prt_11_a_reply_that_no_device_has_vouched_for_counts_as_nothing

in a release the shuffles and dropout of a unit are known @ rounds.train
- population.draw_under(ranks.lead(fresh_key))
+ pass
? test_neighbours.py::test_rng_6_shuffles_and_dropout_are_secret_in_a_release[SimulatedPopulation]

on Flower the shuffles and dropout of a unit are known @ flower_app._client_side
- if config.privacy.noise == 'secure':
-     side.population.draw_under(fresh_key())
+ pass
? test_flower_engine.py::test_rng_6_nodes_of_a_release_shuffle_under_a_secret_key

a delta is stated that noise of finitely many bits does not hide @ Promise.require_delta
- delta < least
+ delta < 0
? test_release.py::test_num_4_a_delta_that_noise_of_finitely_many_bits_cannot_hide_is_refused_before_the_first_round
""")
