"""Paillier: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
PAI-1: what has a factor in common with n is a ciphertext @ PublicKey.ciphertext
- gmpy2.gcd(product, n) != 1
+ product == 0 and len(integers) == 0
? test_paillier_peers.py::test_pai_1_pai_7_what_has_a_factor_in_common_with_n_is_refused_wherever_it_arrives[a ciphertext that arrives]

PAI-1: numbers out of range are reduced @ PublicKey.ciphertext
- integers = [mpz(c) for c in flat]
- n, n_square = (mpz(self.n), self.n_square)
+ n, n_square = (mpz(self.n), self.n_square)
+ integers = [mpz(c) % n_square for c in flat]
? test_paillier_hostile.py::test_pai_1_what_is_no_ciphertext_is_refused_by_the_name_of_the_client[beyond n squared]

PAI-2: the key that a sender names is not compared @ PublicKey.ciphertext
- key_id != self.key_id
+ len(key_id) > 64
? test_paillier_hostile.py::test_pai_2_ciphertexts_under_another_key_are_refused_by_the_name_of_the_client

PAI-2: messages of other agreements are added @ aggregator.received
- message.agreement != agreement.digest
+ len(message.agreement) != len(agreement.digest)
? test_paillier_messages.py::test_pai_2_messages_of_another_run_key_or_packing_are_refused[agreement0]

PAI-3: sums may overflow @ Packing.__post_init__
- self.largest_sum
+ self.max_clients
? test_packing.py::test_pai_3_a_plan_in_which_sums_could_overflow_is_refused_when_it_is_made[settings_8-a sum may exceed]

PAI-4: slots beyond what clients reach are read @ Packing.unpack_steps
- count * self.fixed_point.limit + self.noise
+ 2 ** (self.slot_bits - 1)
? test_packing.py::test_pai_4_slots_beyond_what_honest_clients_reach_are_refused

PAI-6: keys of 1024 bits will do @ secagg.ciphertext
- 2048
+ 512
? test_paillier.py::test_pai_6_a_public_key_that_arrives_is_large_and_has_no_small_factor

PAI-6: powers and primes make a modulus @ PublicKey.__post_init__
- n < 15 or n % 2 == 0 or gmpy2.is_power(mpz(n)) or gmpy2.is_prime(mpz(n), ROUNDS)
+ n < 15 or n % 2 == 0 or gmpy2.is_square(mpz(n))
? test_paillier.py::test_pai_6_a_modulus_that_cannot_be_one_is_refused[243]

PAI-7: one randomizer for all numbers of a call @ ciphertext._hidden
- public.randomizers(len(plain))
+ public.randomizers(1) * len(plain)
? test_paillier_peers.py::test_pai_7_a_thousand_encryptions_of_zero_share_no_randomness[short]

PAI-8: messages of earlier rounds are added again @ aggregator.received
- message.round_index != round_index
+ message.round_index > round_index
? test_paillier_messages.py::test_pai_8_a_server_that_remembers_no_round_refuses_messages_of_all_rounds_before

PAI-8: ciphertexts of this round are added again @ Aggregator._take
- self._ciphertexts.isdisjoint(fresh)
+ fresh
? test_paillier_messages.py::test_pai_8_messages_that_came_before_are_refused

PAI-9: the digest of a message is not compared @ Message.from_bytes
- hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]
+ len(data[-_DIGEST:]) != _DIGEST
? test_paillier_messages.py::test_pai_9_a_number_added_on_the_way_is_seen

PAI-10: plaintexts of zeros are not sent @ Packing.pack_steps
- return whole
+ return whole if steps.any() else whole[-1:]
? test_paillier_peers.py::test_pai_10_what_is_sent_with_a_value_does_not_depend_on_it

PAI-12: proofs are not looked at @ threshold.combine
- proved(public, part)
+ part.proof
? test_threshold.py::test_pai_12_a_holder_who_lies_is_named_and_nothing_is_decrypted[another holder's part]

PAI-12: a holder counts twice @ threshold._require_together
- numbers.count(i) > 1
+ numbers.count(i) > public.holders
? test_threshold.py::test_pai_12_shares_that_count_twice_are_refused

PAI-13: the sum of one client is opened @ Aggregator.require_contributions
- came < needed
+ came < min(needed, 1)
? test_paillier_requests.py::test_pai_13_what_is_no_sum_of_enough_clients_is_not_opened[a single one]

PAI-14: sums are opened without the server's noise @ Aggregator.require_complete
- self.agreement.server_noise and self.agreement.packing.noise and (not self._noise)
+ self.agreement.server_noise and (not self._senders)
? test_paillier_requests.py::test_pai_14_a_sum_without_the_servers_noise_is_asked_of_nobody_and_opened_by_nobody

PAI-14: a holder does not look for its own noise @ Holder._formed
- own not in given or len(request.noise) != agreed.noising_holders
+ len(request.noise) != agreed.noising_holders
? test_paillier_requests.py::test_pai_14_a_sum_without_the_holders_own_noise_is_not_opened

PAI-15: secret keys that others may read are taken @ key_files._read
- 63
+ 2
? test_paillier_keys.py::test_pai_15_a_secret_that_others_may_read_is_refused_with_what_to_type[share]

PAI-15: a share is pickled @ Uncopied.__reduce_ex__
- raise TypeError(f'a {type(self).__name__} cannot be copied or pickled: it holds a secret, and is used in one place')
+ return object.__reduce_ex__(self, protocol)
? test_threshold.py::test_pai_15_a_share_is_in_no_text_and_no_pickle

any node may put its own contributions behind those of the server @ holders._taken
- series = hashlib.sha256(messages.bytes_of(record, SERIES, messages.CHALLENGE_BYTES)).hexdigest()
+ series = hashlib.sha256(b'').hexdigest()
? test_flower_holders.py::test_pai_13_contributions_that_do_not_follow_those_that_came_are_refused
""")  # noqa: E501 # code as it stands
