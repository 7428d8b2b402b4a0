//! `ipu_fuzz::sim_state` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipu_fuzz::sim_state(bytes));
