//! `ipu_fuzz::sim_rest` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipu_fuzz::sim_rest(bytes));
