"""Clients: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
updates that clients should have clipped are summed as they come @ Summing._add
- self.lattice.add(update, total)
+ total.add_((update.double() / self.lattice.step).round())
? test_neighbours.py::test_cli_1_no_hostile_reply_moves_a_federation_by_more[fixed-40]

updates in this process are rounded and not clipped @ clipping.bounded
- lattice.encode(update)
+ ((update.double() / lattice.step).round().long(), False)
? test_neighbours.py::test_cli_1_no_client_in_this_process_moves_a_run_by_more_than_the_sensitivity[identity-just above]

updates are weighted by the examples that clients say they have @ Summing._add
- self.lattice.add(update, total)
+ [
+     self.lattice.add(update, total)
+     for _ in range(int(min(next(iter(content.metric_records.values()))["num-examples"], 9)))
+ ]
? test_bad_clients.py::test_cli_2_flw_3_what_a_client_says_beside_its_update_changes_no_bit[fixed-weight -8]

losses that clients state are summed whatever they are @ aggregate.statistics
- abs(loss) <= _LARGEST_LOSS
+ math.isfinite(loss)
? test_bad_clients.py::test_cli_2_no_losses_that_clients_state_end_a_round[others2]

every answer of a client counts @ RoundMessages.contents
- index in seen
+ False
? test_bad_clients.py::test_cli_3_of_three_answers_the_first_counts_and_the_others_are_in_the_log

answers to an earlier round count in this one @ RoundMessages.contents
- index is None or metadata.group_id != self.messages[index].metadata.group_id or (answers is None and by_id)
+ index is None
? test_flower_replies.py::test_cli_4_a_reply_to_the_round_before_counts_for_nothing

the sum is divided by how many answered @ PrivateRun.finish
- (release, under_way.arrays)
+ (release * self.expected_cohort_size / max(counted, 1), under_way.arrays)
? test_effective_noise.py::test_cli_5_drop_outs_leave_noise_and_influence_as_stated[0.9-float32]

a sum of too few shares of the noise is released @ PrivateRun._discarded
- counted < options.min_survivors
+ not counted
? test_effective_noise.py::test_cli_5_too_few_shares_of_the_noise_are_not_released[3]

what clients measured is told with the round @ PrivateStrategy.aggregate_train
- MetricRecord(public)
+ MetricRecord({**public, **{k: v for r in replies for k, v in r.content['metrics'].items()}})
? test_flower_replies.py::test_cli_10_what_is_told_of_a_round_does_not_hang_on_what_clients_sent

nodes that share a key are several clients @ messages.clients_of
- 'key ' + hashlib.sha256(key).hexdigest()
+ f'key {node}'
? test_bad_clients.py::test_cli_11_nodes_that_share_a_key_are_one_client_and_too_few_release_nothing[keys0-False]

who fails in a stack takes the others along @ faults.isolated
- len(units) == 1
+ len(units) <= 4
? test_units_that_fail.py::test_cli_13_a_target_that_is_no_class_adds_nothing_in_a_stack_of_cross_entropies[batched-4]

a loss may carry one client's data to the next @ faults.require_steady
- not (agree(found[3], found[0]) and agree(found[2], found[1]))
+ False
? test_units_that_fail.py::test_cli_15_a_model_or_a_loss_that_carries_one_unit_s_data_to_the_next_is_refused[model-one-by-one]

what one client leaves in the model is there when the next one is measured @ evaluation.evaluate
- deepcopy(model).eval()
+ model.eval()
? test_evaluation.py::test_cli_15_nothing_of_one_clients_examples_reaches_another_or_the_model_by_a_measurement

a run's first model is called on people's examples @ build._require_model
- deepcopy(model)
+ model
? test_own_classes.py::test_cli_15_the_first_model_of_a_run_was_called_on_nobodys_examples

what a loss keeps of one client reaches its stack @ local.own_loss
- deepcopy(loss) if wholes(loss) else loss
+ loss
? test_stack_neighbours.py::test_cli_15_what_a_module_keeps_and_no_probe_sees_is_put_back[of a loss-client of a stack]
""")
