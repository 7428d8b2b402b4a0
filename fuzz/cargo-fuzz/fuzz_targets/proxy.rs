//! `ipu_fuzz::proxy` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipu_fuzz::proxy(bytes));
