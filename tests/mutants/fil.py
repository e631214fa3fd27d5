"""Files and settings: mutants."""

from mutants.mutant import parsed

MUTANTS = parsed(r"""
FIL-1: entries above the diagonal are not looked for @ matrices.checked_triangular
- np.triu(C, 1)
+ np.triu(C, len(C))
? test_wrong_matrices.py::test_fil_1_what_is_no_strategy_is_refused_with_row_and_column[above the diagonal-C.npy]

FIL-1: entries that are not finite are not looked for @ checks.real_array
- ~np.isfinite(array)
+ np.isneginf(array)
? test_wrong_matrices.py::test_fil_1_what_is_no_strategy_is_refused_with_row_and_column[NaN-C.npy]

FIL-2: what a foreign strategy states of its sensitivity is believed @ mechanism._sensitivity
- type(strategy) in OWN
+ True
? test_wrong_matrices.py::test_fil_2_a_stated_sensitivity_is_not_trusted

FIL-2: columns are taken to have norm 1 @ Mechanism.stddev
- self.noise_multiplier * self.column_norm
+ self.noise_multiplier
? test_wrong_matrices.py::test_fil_2_columns_of_any_norm_have_the_sensitivity_that_they_have[3.0]

FIL-3: NumPy reads matrices, pickles and all @ tensor_proto.read_tensor_proto
- _from_npy(content)
+ np.load(io.BytesIO(content), allow_pickle=True)
? test_wrong_code.py::test_fil_3_no_loader_runs_what_a_pickle_holds[npy of objects-a matrix]

FIL-6: NaN and infinity are numbers @ strict_json._finite
- not math.isfinite(number)
+ math.isinf(number)
? test_wrong_code.py::test_fil_6_json_has_one_reading[NaN]

FIL-6: of a name that comes twice the last one counts @ strict_json._once
- name in found
+ not name
? test_wrong_code.py::test_fil_6_json_has_one_reading[a name twice]

FIL-6: numbers beyond all floats are infinite @ strict_json._finite
- not math.isfinite(number)
+ math.isnan(number)
? test_wrong_code.py::test_fil_6_json_has_one_reading[a number beyond all floats]

FIL-8: what is no setting is left out @ config.resolve
- value is not None or not hasattr(kind, key)
+ value is not None and hasattr(kind, key)
? test_cli.py::test_fil_8_every_key_misspelt_is_refused_with_the_right_one[privacy]

FIL-10: a holder's folder is called as the server calls the run @ holders.answer
- f'holder-{number}-{hashlib.sha256(agreement.run.encode()).hexdigest()[:16]}'
+ agreement.run
? test_wrong_paths.py::test_fil_10_forty_names_of_runs_lead_nowhere_but_into_the_holders_own_folder
""")
