"""Flower: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
a statement is silent about the way over the network @ accounting.wording
- "readers see only the released models: no single update, cohort, noise or key, neither on the operator's machines nor on the network, where TLS hides them"
+ "readers see only the released models: no single update, cohort, noise or key, neither on the operator's machines"
? test_federations_go_wrong.py::test_flw_1_a_statement_says_that_it_counts_on_encryption_on_the_way[fixed]

a promise of who joins when is made where anybody may join @ Options.require_fitting
- promises(pattern, mechanism.rounds)
+ not promises(pattern, mechanism.rounds)
? test_federations_go_wrong.py::test_flw_2_a_promise_of_who_joins_when_is_not_made_where_anybody_may_join

nodes without a registered key are asked @ messages.clients_of
- if not keys_enforced:
-     found[f'node {node}'] = node
+ found[f'node {node}'] = node
? test_federations_go_wrong.py::test_flw_2_a_node_without_a_registered_key_is_never_asked

a server that starts again begins with the model that it is given @ PrivateStrategy.resumed
- return self._open(initial_arrays, grid).arrays or initial_arrays
+ self._open(initial_arrays, grid)
+ return initial_arrays
? test_federations_go_wrong.py::test_flw_5_a_server_that_starts_again_goes_on_with_model_ledger_clip_norm_and_participation

a client is known by the number of its node @ messages.clients_of
- 'key ' + hashlib.sha256(key).hexdigest()
+ f'key {node}'
? test_federations_go_wrong.py::test_flw_6_prt_5_nodes_that_come_back_under_new_numbers_are_the_clients_whose_keys_they_have

the server counts on the clients' mods for the clip @ Summing._add
- self.lattice.add(update, total)
+ total.add_((update.double() / self.lattice.step).round())
? test_federations_go_wrong.py::test_flw_7_whatever_mods_clients_have_one_moves_the_release_by_one_clip_norm_at_most[none]

where clients add the noise the server takes updates without any @ Summing.of
- self._noised(content, len(messages.messages))
+ self.lattice.encode(difference(self.layout.views(single_arrays(content)), before))[0]
? test_federations_go_wrong.py::test_flw_7_without_the_mods_that_noise_at_the_clients_needs_nothing_is_released[none]
""")  # noqa: E501 # code as it stands
