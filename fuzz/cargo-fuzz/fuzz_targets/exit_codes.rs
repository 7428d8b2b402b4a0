//! `ipu_fuzz::exit_codes` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipu_fuzz::exit_codes(bytes));
